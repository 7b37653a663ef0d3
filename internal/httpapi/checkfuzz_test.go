package httpapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

// Each line that is not blank is one question or one error that its client can act on,
// under its own number; none costs its neighbours anything.
func FuzzCheckLine(f *testing.F) {
	f.Add([]byte(oneUnit))
	for _, bad := range badUnits {
		f.Add([]byte(bad.line + "\n\n" + oneUnit))
	}
	f.Add([]byte(strings.Repeat("x", 3*maxLine) + "\n{}"))
	f.Add([]byte("\r\n \t\n\x00\xff\n" + `{"collection":"a","tile_id":"t","identity":{"version":"1","x":[[[]]]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		want := 0
		for line := range bytes.Lines(body) {
			// What is longer is told by its length alone.
			if len(bytes.TrimSpace(line)) > 0 || len(line) > maxLine {
				want++
			}
		}
		in, c := bufio.NewReaderSize(bytes.NewReader(body), maxLine), checker{}
		var line, last int64
		for got := 0; ; got++ {
			q, err := nextQuestion(in, &line)
			if errors.Is(err, io.EOF) {
				if got != want {
					t.Fatalf("%d questions, want %d", got, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if q.line <= last {
				t.Fatalf("line %d after %d", q.line, last)
			}
			last = q.line
			if q.err == nil {
				continue
			}
			if status := catalog.CodeOf(q.err).Status(); status < 400 || status > 499 {
				t.Fatalf("line %d: %v", q.line, q.err)
			}
			answer, err := json.Marshal(c.count(&q))
			if err != nil {
				t.Fatal(err)
			}
			holdLine(t, "CheckedUnit", answer)
		}
	})
}

// What is taken for a UnitRef is what encoding/json makes of it.
func FuzzUnit(f *testing.F) {
	f.Add([]byte(oneUnit))
	for _, bad := range badUnits {
		f.Add([]byte(bad.line))
	}
	f.Add([]byte(` {"c\u006fllection" : null ,"tile_id":"\ud83d\ude00\"" , "identity": [1 , {"a":"}]"}] } `))
	f.Add([]byte(`{"identity":1,"client_key":"\/"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := readUnit(raw)
		if err != nil {
			return
		}
		var ref UnitRef
		if err := json.Unmarshal(raw, &ref); err != nil {
			t.Fatal(err)
		}
		want := upsert.UnitRef{
			Key: value(ref.UnitKey), Collection: value(ref.Collection), TileID: value(ref.TileId),
			Identity: value(ref.Identity), ClientKey: value(ref.ClientKey),
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
}
