package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/s3gateway"
)

// The command is this test: it uses what it was given, and tells the endpoint.
func TestMain(m *testing.M) {
	told := os.Getenv("WITHS3_TEST_TOLD")
	if told == "" {
		os.Exit(m.Run())
	}
	if err := use(context.Background(), os.Args[1]); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	if err := os.WriteFile(told, []byte(os.Getenv("AWS_ENDPOINT_URL_S3")), 0o644); err != nil {
		os.Exit(1)
	}
	if len(os.Args) > 2 {
		time.Sleep(time.Minute)
	}
	os.Exit(7)
}

func use(ctx context.Context, store string) error {
	loaded, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(store, "s3://"), "?")
	client := s3.NewFromConfig(loaded, func(o *s3.Options) { o.UsePathStyle = true })
	_, err = client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &name})
	return err
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		name string
		more []string
		code int
	}{
		{"ends", nil, 7},
		{"is told to end", []string{"wait"}, 128 + int(syscall.SIGTERM)},
	} {
		t.Run(c.name, func(t *testing.T) {
			temp := t.TempDir()
			told := filepath.Join(t.TempDir(), "told")
			t.Setenv("TMPDIR", temp)
			t.Setenv("WITHS3_TEST_TOLD", told)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if c.more != nil {
				go func() {
					for ctx.Err() == nil {
						if text, err := os.ReadFile(told); err == nil && len(text) > 0 {
							cancel()
						}
						time.Sleep(10 * time.Millisecond)
					}
				}()
			}
			code, err := run(ctx, false, append([]string{os.Args[0], "{store}"}, c.more...))
			if err != nil || code != c.code {
				t.Errorf("ended with %d, %v", code, err)
			}
			endpoint, err := os.ReadFile(told)
			if err != nil || !strings.HasPrefix(string(endpoint), "http://") {
				t.Fatalf("the endpoint is %q, %v", endpoint, err)
			}
			if resp, err := http.Get(string(endpoint)); err == nil {
				resp.Body.Close()
				t.Errorf("%s still answers", s3gateway.Module)
			}
			if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestRunTells(t *testing.T) {
	if code, err := run(t.Context(), false, []string{"/no/such/program"}); err == nil || code != 127 {
		t.Errorf("ended with %d, %v", code, err)
	}
}
