package client

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// A store that refuses before it has read the bytes is heard, although it reads no more.
func TestRefusalIsHeard(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				const said = `<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>`
				fmt.Fprintf(c, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(said), said)
			}
			c.Close() // with bytes unread: a reset
		}
	}()
	name := filepath.Join(t.TempDir(), "out.tif")
	if err := os.WriteFile(name, make([]byte, 32<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := openLocal(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	u := &upload{Client: &Client{}, file: f, meter: noMeter{}}
	for range 20 {
		_, err := u.put(t.Context(), part{Method: http.MethodPut, URL: "http://" + l.Addr().String(), SizeBytes: f.size})
		var refused *storeError
		if !errors.As(err, &refused) || refused.Code != "AccessDenied" || !refused.expired() {
			t.Error(err)
		}
	}
}
