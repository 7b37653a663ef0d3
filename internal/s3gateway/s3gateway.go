// Package s3gateway runs a real S3 server on this machine: versitygw, of one
// version, on a directory. It is for tests, benchmarks and the demo.
//
// Its invariant: a gateway ends with the process that started it. It imports the
// standard library and the AWS SDK.
package s3gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"debug/buildinfo"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// Module and Version say what is run.
const (
	Module  = "github.com/versity/versitygw"
	Version = "v1.8.0"
)

// Region is the gateway's.
const Region = "us-east-1"

// Options say where a gateway keeps what it is given.
type Options struct {
	// Dir is an existing directory, on a filesystem with extended attributes.
	Dir string
	// Binary is Version's program; "" to look for it, and to build it.
	Binary string
	// Args are further global flags.
	Args []string
}

// Gateway is a running server.
type Gateway struct {
	// Endpoint is http://127.0.0.1:PORT.
	Endpoint string
	// AccessKey and SecretKey are root's.
	AccessKey, SecretKey string

	binary string
	cmd    *exec.Cmd
	ended  <-chan struct{}
	log    *bytes.Buffer
}

// Start starts a gateway and waits until it answers. Stop ends it.
func Start(ctx context.Context, opts Options) (*Gateway, error) {
	if opts.Binary == "" {
		var err error
		if opts.Binary, err = Binary(ctx); err != nil {
			return nil, err
		}
	}
	for range 5 { // the port may be taken between finding and using it
		g, err := start(ctx, opts)
		if err == nil || !errors.Is(err, errEnded) {
			return g, err
		}
	}
	return start(ctx, opts)
}

var errEnded = errors.New("the gateway ended at once")

func start(ctx context.Context, opts Options) (*Gateway, error) {
	address, err := freePort()
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{"iam", "objects", "versions"} {
		if err := os.MkdirAll(filepath.Join(opts.Dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	g := &Gateway{
		Endpoint: "http://" + address, AccessKey: "root", SecretKey: "secret-" + rand.Text(),
		binary: opts.Binary, log: &bytes.Buffer{},
	}
	args := append([]string{
		"--port", address, "--region", Region, "--health", "/healthz", "--keep-alive", "--quiet",
		"--iam-dir", filepath.Join(opts.Dir, "iam"), "--iam-cache-disable",
	}, opts.Args...)
	args = append(args, "posix", "--versioning-dir", filepath.Join(opts.Dir, "versions"), filepath.Join(opts.Dir, "objects"))
	g.cmd = exec.Command(opts.Binary, args...)
	g.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+g.AccessKey, "ROOT_SECRET_KEY="+g.SecretKey)
	g.cmd.Stdout, g.cmd.Stderr = g.log, g.log
	// A group of its own: the terminal's ^C is for those who use it, and then end it.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if g.ended, err = spawn(g.cmd); err != nil {
		return nil, err
	}
	if err := g.wait(ctx); err != nil {
		return nil, errors.Join(err, g.Stop())
	}
	return g, nil
}

// wait waits until the gateway answers.
func (g *Gateway) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.Endpoint+"/healthz", nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-g.ended:
			return fmt.Errorf("%w: %v: %s", errEnded, g.cmd.ProcessState, g.log)
		case <-ctx.Done():
			return fmt.Errorf("the gateway does not answer at %s: %w", g.Endpoint, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop kills the gateway, as a power cut would.
func (g *Gateway) Stop() error {
	if err := g.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-g.ended
	return nil
}

// Env are the settings with which programs that use the AWS SDK, or GDAL, speak to the
// gateway as root. Path style has none of the SDK's: it is to be asked for.
func (g *Gateway) Env() []string {
	return []string{
		"AWS_ENDPOINT_URL_S3=" + g.Endpoint, "AWS_REGION=" + Region,
		"AWS_ACCESS_KEY_ID=" + g.AccessKey, "AWS_SECRET_ACCESS_KEY=" + g.SecretKey,
		"AWS_S3_ENDPOINT=" + strings.TrimPrefix(g.Endpoint, "http://"), "AWS_HTTPS=NO", "AWS_VIRTUAL_HOSTING=FALSE",
	}
}

// Client speaks to the gateway as root.
func (g *Gateway) Client() *s3.Client {
	return s3.New(s3.Options{
		Region: Region, BaseEndpoint: &g.Endpoint, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(g.AccessKey, g.SecretKey, ""),
	})
}

// CreateBucket makes a bucket.
func (g *Gateway) CreateBucket(ctx context.Context, name string) error {
	_, err := g.Client().CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &name})
	return err
}

// Version turns versioning on.
func (g *Gateway) Version(ctx context.Context, bucket string) error {
	_, err := g.Client().PutBucketVersioning(ctx, &s3.PutBucketVersioningInput{
		Bucket: &bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	return err
}

// CreateUser makes a user who may do nothing until a bucket's policy says so, and
// gives his secret key.
func (g *Gateway) CreateUser(ctx context.Context, access string) (secret string, err error) {
	secret = "secret-" + rand.Text()
	cmd := exec.CommandContext(ctx, g.binary, "admin", "--allow-insecure", "--endpoint-url", g.Endpoint,
		"--access", g.AccessKey, "--secret", g.SecretKey, "create-user", "--access", access, "--secret", secret, "--role", "user")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("create user %s: %w: %s", access, err, out)
	}
	return secret, nil
}

// SetPolicy gives a bucket its policy.
func (g *Gateway) SetPolicy(ctx context.Context, bucket, policy string) error {
	_, err := g.Client().PutBucketPolicy(ctx, &s3.PutBucketPolicyInput{Bucket: &bucket, Policy: aws.String(policy)})
	return err
}

// Binary finds Version's program, in .cache/ of the module that the working
// directory is in or where go install has put it, or builds it there. It says what
// it built: a program of another version passes for none.
func Binary(ctx context.Context) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	cache := filepath.Join(root, ".cache", "versitygw-"+Version)
	places := []string{filepath.Join(cache, "versitygw")}
	if home, err := os.UserHomeDir(); err == nil {
		places = append(places, filepath.Join(home, "go", "bin", "versitygw"))
	}
	for _, place := range places {
		if info, err := buildinfo.ReadFile(place); err == nil && info.Main.Path == Module && info.Main.Version == Version {
			return place, nil
		}
	}
	return places[0], build(ctx, cache)
}

// build installs the program in dir. Several processes may at once.
func build(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	own, err := os.MkdirTemp(dir, ".build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(own)
	cmd := exec.CommandContext(ctx, "go", "install", Module+"/cmd/versitygw@"+Version)
	cmd.Env = append(os.Environ(), "GOBIN="+own, "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s %s: %w: %s", Module, Version, err, out)
	}
	return os.Rename(filepath.Join(own, "versitygw"), filepath.Join(dir, "versitygw"))
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is in no Go module", dir)
		}
	}
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// spawn starts cmd from an OS thread that lives until cmd has ended: the kernel
// sends Pdeathsig when the thread that forked dies, not the process
// (go.dev/issue/27505).
func spawn(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	started, end := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in cmd.ProcessState
			close(end)
		}
	}()
	return end, <-started
}
