package s3

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/storage"
	"catalogd/internal/storage/storagetest"
)

const trashed = storage.TrashPrefix + "1/" + final

func isDelete(r *http.Request) bool { return r.Method == http.MethodDelete }

// inBothWays runs a test with copies of whole objects, and in parts.
func inBothWays(t *testing.T, test func(t *testing.T, change func(*Config))) {
	for _, parts := range []bool{false, true} {
		t.Run(fmt.Sprint("in parts ", parts), func(t *testing.T) {
			test(t, func(c *Config) {
				if parts {
					c.CopyThreshold, c.CopyPart = 1, minPart
				}
			})
		})
	}
}

// Answers are lost, or a crash comes, at any request: what is left is an object at one of
// the two names, or at both, and the next call ends with it at the second.
func TestRenameCutAnywhere(t *testing.T) {
	inBothWays(t, func(t *testing.T, change func(*Config)) {
		s, l, _ := through(t, change, func(c *Config) { c.Attempts = 1 })
		for n := int64(0); ; n++ {
			storagetest.Put(t, s, final, "hello")
			l.After(nil)
			before := l.Count.Load()
			cut := func(*http.Response) error {
				if l.Count.Load() > before+n {
					return fmt.Errorf("cut")
				}
				return nil
			}
			l.After(cut)
			err := s.Rename(t.Context(), final, trashed)
			l.Calm()
			if len(storagetest.Keys(t, s, final))+len(storagetest.Keys(t, s, trashed)) == 0 {
				t.Fatalf("lost after %d answers", n)
			}
			ok(t, s.Rename(t.Context(), final, trashed))
			_, gone := s.Stat(t.Context(), final)
			is(t, gone, storage.ErrNotExist)
			same(t, storagetest.Content(t, s, trashed), "hello")
			ok(t, s.Delete(t.Context(), trashed))
			if err == nil {
				if n < 5 {
					t.Fatalf("only %d requests", n)
				}
				break
			}
		}
	})
}

// What cannot be deleted stays at both names, and is finished later.
func TestRenameDeleteDenied(t *testing.T) {
	inBothWays(t, func(t *testing.T, change func(*Config)) {
		s, l, _ := through(t, change)
		storagetest.Put(t, s, final, "hello")
		l.Refuse(always, http.StatusForbidden, "AccessDenied", isDelete)
		is(t, s.Rename(t.Context(), final, trashed), storage.ErrPermission, "s3:DeleteObject")
		same(t, storagetest.Content(t, s, final)+storagetest.Content(t, s, trashed), "hellohello")
		l.Calm()
		copies := l.Refuse(always, http.StatusServiceUnavailable, "SlowDown", gatewaytest.IsCopy)
		ok(t, s.Rename(t.Context(), final, trashed))
		same(t, copies.Load(), 0) // it is not copied again
		_, err := s.Stat(t.Context(), final)
		is(t, err, storage.ErrNotExist)
	})
}

// What somebody writes to the first name while it is copied is not removed.
func TestRenameChangedMeanwhile(t *testing.T) {
	inBothWays(t, func(t *testing.T, change func(*Config)) {
		s, l, g := through(t, change)
		client := g.Client()
		write := func(content string) {
			_, err := client.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &s.bucket, Key: s.key(final), Body: strings.NewReader(content)})
			ok(t, err)
		}
		storagetest.Put(t, s, final, "hello")
		copied := gatewaytest.IsCopy
		if s.cfg.CopyThreshold == 1 {
			copied = gatewaytest.IsAssembly
		}
		rewrite := func(resp *http.Response) error {
			if copied(resp.Request) {
				write("later")
			}
			return nil
		}
		l.After(rewrite)
		is(t, s.Rename(t.Context(), final, trashed), storage.ErrChanged)
		l.Calm()
		same(t, storagetest.Content(t, s, final)+" "+storagetest.Content(t, s, trashed), "later hello")
		is(t, s.Rename(t.Context(), final, trashed), storage.ErrExist)
		same(t, storagetest.Content(t, s, final), "later")
	})
}

// Media type and metadata go to the trash and back, others' too.
func TestRenameKeepsMetadata(t *testing.T) {
	inBothWays(t, func(t *testing.T, change func(*Config)) {
		g := gatewaytest.Start(t)
		s := open(t, g, change)
		about := map[string]string{"unit-key": "u", "identity": `{"a":"é"}`, "content-type": "image/tiff; application=geotiff; profile=cloud-optimized"}
		_, err := s.PromoteAs(t.Context(), storage.Promotion{StagedKey: staged, FinalKey: final, Fingerprint: storagetest.Stage(t, s, staged, "hello"), About: about})
		ok(t, err)
		_, err = g.Client().PutObject(t.Context(), &awss3.PutObjectInput{
			Bucket: &s.bucket, Key: s.key("stray"), Body: strings.NewReader("stray"), ContentType: aws.String("text/x-own"),
			Metadata: map[string]string{"owner": "somebody", "note": "a b"},
		})
		ok(t, err)
		for _, key := range []string{final, "stray"} {
			before, err := s.head(t.Context(), key)
			ok(t, err)
			to := storage.TrashPrefix + "1/" + key
			ok(t, s.Rename(t.Context(), key, to))
			ok(t, s.Rename(t.Context(), to, key))
			after, err := s.head(t.Context(), key)
			ok(t, err)
			delete(before.meta, metaSource)
			delete(after.meta, metaSource)
			same(t, fmt.Sprint(after.mediaType, after.meta), fmt.Sprint(before.mediaType, before.meta))
		}
	})
}
