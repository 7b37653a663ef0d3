package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/upsert"
)

const ndjson = "application/x-ndjson"

// lines splits an NDJSON answer and holds each line to the contract.
func lines(t *testing.T, body string) (units []CheckedUnit, last CheckSummaryLine) {
	t.Helper()
	all := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
	for _, line := range all[:len(all)-1] {
		holdLine(t, "CheckedUnit", []byte(line))
		var u CheckedUnit
		if err := json.Unmarshal([]byte(line), &u); err != nil {
			t.Fatal(err)
		}
		units = append(units, u)
	}
	holdLine(t, "CheckSummaryLine", []byte(all[len(all)-1]))
	if err := json.Unmarshal([]byte(all[len(all)-1]), &last); err != nil {
		t.Fatal(err)
	}
	return units, last
}

// badUnits are lines that cost their own answer only.
var badUnits = []struct{ line, code, field string }{
	{`{"collection":"landcover","tile_id":"../x","identity":{"version":"1"}}`, "invalid_tile_id", "/tile_id"},
	{`{"collection":"landcover","tile_id":"t","identity":{"version":"1","a":1,"a":2}}`, "invalid_identity", "/identity/a"},
	{`{"collection":"landcover","tile_id":"t","identity":{"version":"1","x":1e400}}`, "invalid_identity", "/identity/x"},
	{`{"collection":"landcover","tile_id":"t","identity":{"version":"1","x":NaN}}`, "invalid_identity", "/identity/x"},
	{`{"collection":"landcover","tile_id":"t","identity":{"version":"1","x":"\ud800"}}`, "invalid_identity", "/identity/x"},
	{`{"collection":"landcover","tile_id":"t","identity":[]}`, "invalid_identity", "/identity"},
	{`{"collection":"landcover","tile_id":7,"identity":{"version":"1"}}`, "invalid_request", "/tile_id"},
	{`{"unit_key":"nonsense"}`, "invalid_request", "/unit_key"},
	{`{"unit_key":"` + unitKey.String() + `","tile":"t"}`, "invalid_request", "/tile"},
	{`{"unit_key":`, "invalid_request", "/unit_key"},
	{`nonsense`, "invalid_request", ""},
	{`{} {}`, "invalid_request", ""},
	{oneUnit + `]`, "invalid_request", ""},
	{oneUnit + `}`, "invalid_request", ""},
	{oneUnit + `,`, "invalid_request", ""},
	{`null`, "invalid_request", ""},
	{`{"collection":"landcover","tile_id":"a","tile_id":"t","identity":{"version":"1"}}`, "invalid_request", "/tile_id"},
	{`{"collection":"landcover","tile_id":"t","TILE_ID":"u","identity":{"version":"1"}}`, "invalid_request", "/TILE_ID"},
	{`{"collection":"landcover","Tile_Id":"t","identity":{"version":"1"}}`, "invalid_request", "/Tile_Id"},
	{`{"collection":"landcover","tile_id":"t","identity":{"version":"1"},"identity":{"version":"2"}}`, "invalid_request", "/identity"},
	{`{"collection":"landcover","tile_id":"t","Identity":{"version":"1"}}`, "invalid_request", "/Identity"},
	{`{"collection":"landcover","tile_id":"t","client_key":"\ud800","identity":{"version":"1"}}`, "invalid_request", ""},
	{"{\"collection\":\"landcover\",\"tile_id\":\"t\",\"client_key\":\"\xff\",\"identity\":{\"version\":\"1\"}}", "invalid_request", ""},
	{`[]`, "invalid_request", ""},
}

func TestCheckNDJSON(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	var in strings.Builder
	in.WriteString(oneUnit + "\n\n  \r\n")
	for _, bad := range badUnits {
		in.WriteString(bad.line + "\n")
	}
	in.WriteString(`{"x":"` + strings.Repeat("y", 3*maxLine) + "\"}\n")
	in.WriteString(`{"unit_key":"` + unitKey.String() + `"}`) // and no end of line

	res, body := call(t, "POST", url+"/v1/units:check", "read", ndjson, in.String())
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != ndjson {
		t.Fatalf("%d %s", res.StatusCode, body)
	}
	units, last := lines(t, body)
	if len(units) != len(badUnits)+3 {
		t.Fatalf("%d answers, want %d", len(units), len(badUnits)+3)
	}
	if u := units[0]; value(u.Line) != 1 || value(u.Status) != UnitStatusDone || u.Error != nil {
		t.Errorf("first answer is %+v", u)
	}
	for i, bad := range badUnits {
		u := units[i+1]
		if value(u.Line) != int64(i+4) || u.Error == nil || string(u.Error.Code) != bad.code || value(u.Error.Field) != bad.field {
			t.Errorf("%s: answer %+v, error %+v, want line %d, %s at %q", bad.line, u, u.Error, i+4, bad.code, bad.field)
		}
	}
	if u := units[len(units)-2]; u.Error == nil || u.Error.Code != CodeTooLarge {
		t.Errorf("a line that is too long was answered %+v", u)
	}
	if u := units[len(units)-1]; value(u.UnitKey) != unitKey || value(u.Line) != int64(len(badUnits)+5) {
		t.Errorf("last answer is %+v", u)
	}
	want := CheckSummary{Total: int64(len(units)), Done: 2, Errors: int64(len(badUnits) + 1)}
	if last.Summary != want || last.Error != nil {
		t.Errorf("summary %+v, error %v, want %+v", last.Summary, last.Error, want)
	}
}

func TestUnitMembersAreTheContracts(t *testing.T) {
	want := slices.Sorted(maps.Keys(document().Components.Schemas["UnitRef"].Value.Properties))
	if got := slices.Sorted(maps.Keys(unitMembers)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestCheckJSON(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	var units []string
	for _, bad := range badUnits {
		if json.Valid([]byte(bad.line)) {
			units = append(units, bad.line)
		}
	}
	units = append(units, oneUnit)
	_, body := call(t, "POST", url+"/v1/units:check", "read", "application/json", `{"units":[`+strings.Join(units, ",")+`]}`)
	var result CheckResult
	if err := json.Unmarshal([]byte(body), &result); err != nil {
		t.Fatal(err)
	}
	if want := (CheckSummary{Total: int64(len(units)), Done: 1, Errors: int64(len(units) - 1)}); result.Summary != want || len(result.Results) != len(units) {
		t.Errorf("%d results, summary %+v, want %+v", len(result.Results), result.Summary, want)
	}

	many := `{"units":[` + strings.TrimSuffix(strings.Repeat("{},", maxCheckUnits+1), ",") + `]}`
	res, body := call(t, "POST", url+"/v1/units:check", "read", "application/json", many)
	if p := problemOf(t, res, body); p.Code != CodeTooLarge || value(p.Field) != "/units" {
		t.Errorf("too many units: %+v", p)
	}
	for _, body := range []string{`{}`, `{"units":null}`, `[]`, `{"units":{}}`} {
		res, body := call(t, "POST", url+"/v1/units:check", "read", "application/json", body)
		if p := problemOf(t, res, body); p.Code != CodeInvalidRequest {
			t.Errorf("%s: %+v", body, p)
		}
	}
}

func TestCheckJSONIsOneListOfUnits(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	for _, c := range []struct{ body, field, says string }{
		{`{"units":[],"units":[]}`, "/units", "twice"},
		{`{"units":null,"units":[]}`, "/units", "twice"},
		{`{"units":{}}`, "/units", "a list"},
		{`{"units":[],"Units":[` + oneUnit + `]}`, "/Units", "unsupported"},
		{`{"units":[],"verify":"head"}`, "/verify", "unsupported"},
		{`{"units":[]}]`, "", "more follows"},
		{`{"units":[]}` + strings.Repeat(" ", 64<<10) + `{}`, "", "more follows"},
	} {
		res, body := call(t, "POST", url+"/v1/units:check", "read", "application/json", c.body)
		if p := problemOf(t, res, body); p.Code != CodeInvalidRequest || value(p.Field) != c.field || !strings.Contains(p.Detail, c.says) {
			t.Errorf("%.40s: %s at %q: %s", c.body, p.Code, value(p.Field), p.Detail)
		}
	}
	body := `{"units":[` + strings.Repeat(`{"tile_id":"],[,\"{"},`, maxCheckUnits-1) + oneUnit + `]}` + strings.Repeat("\n", 64<<10)
	if res, answer := call(t, "POST", url+"/v1/units:check", "read", "application/json", body); res.StatusCode != 200 || !strings.Contains(answer, `"total":10000,`) {
		t.Errorf("%d units: %d %.300s", maxCheckUnits, res.StatusCode, answer)
	}
}

// ⚗ A body within its bound holds millions of small values, and took 780 MB decoded
// before anyone counted.
func TestCheckJSONInBoundedMemory(t *testing.T) {
	url, _ := serve(t, newFake(), nil)
	ones := strings.TrimSuffix(strings.Repeat("1,", 15<<19), ",")
	for _, c := range []struct {
		body  string
		code  Code
		bound uint64
	}{
		{`{"units":[` + ones + `]}`, CodeTooLarge, 8 << 20},
		{`{"units":[[` + ones + `]]}`, "", 128 << 20},
		{`{"unit":[` + ones + `]}`, CodeTooLarge, 8 << 20},
		{`{"unit":[[` + ones + `]]}`, CodeInvalidRequest, 128 << 20},
		{`[[` + ones + `]]`, CodeTooLarge, 8 << 20},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		res, body := call(t, "POST", url+"/v1/units:check", "read", "application/json", c.body)
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > c.bound {
			t.Errorf("%.20s…: %d MiB were allocated, more than %d", c.body, grown>>20, c.bound>>20)
		}
		if c.code == "" {
			var result CheckResult
			if err := json.Unmarshal([]byte(body), &result); err != nil || len(result.Results) != 1 || result.Results[0].Error == nil || result.Results[0].Error.Code != CodeTooLarge {
				t.Errorf("%.20s…: %s", c.body, body)
			}
		} else if p := problemOf(t, res, body); p.Code != c.code {
			t.Errorf("%.20s…: %+v", c.body, p)
		}
	}
}

// Totals and states are carried over as they are.
func TestCheckCounts(t *testing.T) {
	f := newFake()
	f.check = func(refs []upsert.UnitRef) ([]upsert.Checked, error) {
		out := checkAll(refs)
		for i := range out {
			out[i].Status = upsert.Statuses[i%len(upsert.Statuses)]
			out[i].Due = i%2 == 0
		}
		return out, nil
	}
	url, _ := serve(t, f, nil)
	_, body := call(t, "POST", url+"/v1/units:check", "read", ndjson, strings.Repeat(oneUnit+"\n", 6))
	_, last := lines(t, body)
	if want := (CheckSummary{Total: 6, Done: 1, Stale: 1, New: 1, Running: 1, Quarantined: 1, Lost: 1, Due: 3}); last.Summary != want {
		t.Errorf("summary %+v, want %+v", last.Summary, want)
	}
}

// Before the first answer the server's own trouble is a problem; after it, the
// last line says so.
func TestCheckWhenTheDatabaseGoes(t *testing.T) {
	f := newFake()
	url, log := serve(t, f, nil)
	away := catalog.Errorf(catalog.CodeDatabaseUnavailable, "away").Because(errors.New("hunter2"))

	f.check = func([]upsert.UnitRef) ([]upsert.Checked, error) { return nil, away }
	res, body := call(t, "POST", url+"/v1/units:check", "read", ndjson, oneUnit)
	if p := problemOf(t, res, body); p.Code != CodeDatabaseUnavailable {
		t.Errorf("%+v", p)
	}

	calls := 0
	f.check = func(refs []upsert.UnitRef) ([]upsert.Checked, error) {
		if calls++; calls == 3 {
			return nil, away
		}
		return checkAll(refs), nil
	}
	res, body = call(t, "POST", url+"/v1/units:check", "read", ndjson, strings.Repeat(oneUnit+"\n", 5*checkChunk))
	units, last := lines(t, body)
	if res.StatusCode != 200 || len(units) != 2*checkChunk || last.Summary.Total != 2*checkChunk || last.Error == nil || last.Error.Code != CodeDatabaseUnavailable {
		t.Errorf("%d, %d answers, last line %+v", res.StatusCode, len(units), last)
	}
	if strings.Contains(body, "hunter2") || !strings.Contains(log.String(), "hunter2") {
		t.Error("the cause belongs in the log, and nowhere else")
	}
}

// ⚗ Large units take long to parse, within the deadline of the chunk.
func TestCheckBoundsChunksByBytes(t *testing.T) {
	f := newFake()
	var most, calls int
	f.check = func(refs []upsert.UnitRef) ([]upsert.Checked, error) {
		size := 0
		for _, ref := range refs {
			size += len(ref.Identity)
		}
		most, calls = max(most, size), calls+1
		return checkAll(refs), nil
	}
	url, _ := serve(t, f, nil)
	const n = 100
	large := `{"collection":"landcover","tile_id":"t","identity":{"version":"1","x":"` + strings.Repeat("y", 60<<10) + `"}}`
	for _, c := range []struct{ contentType, body string }{
		{ndjson, strings.Repeat(large+"\n", n)},
		{"application/json", `{"units":[` + strings.Repeat(large+",", n-1) + large + `]}`},
	} {
		most, calls = 0, 0
		res, body := call(t, "POST", url+"/v1/units:check", "read", c.contentType, c.body)
		if res.StatusCode != 200 || !strings.Contains(body, `"total":100,`) {
			t.Errorf("%s: %d %.300s", c.contentType, res.StatusCode, body)
		}
		if most > chunkBytes+maxLine || calls < len(large)*n/(chunkBytes+maxLine) {
			t.Errorf("%s: %d bytes in one chunk of %d, want no more than %d", c.contentType, most, calls, chunkBytes)
		}
	}
}

// When the check's own time is up, nobody else is blamed for it.
func TestCheckOwnsItsDeadline(t *testing.T) {
	defer func(was time.Duration) { chunkDeadline = was }(chunkDeadline)
	chunkDeadline = 50 * time.Millisecond
	f := newFake()
	url, log := serve(t, f, func(c *Config) { c.Step = stuckStep{f} })
	for _, c := range []struct{ contentType, body string }{{ndjson, oneUnit}, {"application/json", `{"units":[` + oneUnit + `]}`}} {
		res, body := call(t, "POST", url+"/v1/units:check", "read", c.contentType, c.body)
		if p := problemOf(t, res, body); p.Code != CodeBusy || strings.Contains(p.Detail, "database") {
			t.Errorf("%s: %+v", c.contentType, p)
		}
	}
	if !strings.Contains(log.String(), "the database does not answer") {
		t.Error("the log does not say what waited")
	}
}

// stuckStep says what postgres says of a deadline.
type stuckStep struct{ *fake }

func (stuckStep) Check(ctx context.Context, _ []upsert.UnitRef, _ bool) ([]upsert.Checked, error) {
	<-ctx.Done()
	return nil, catalog.Errorf(catalog.CodeDatabaseUnavailable, "the database does not answer").Because(ctx.Err())
}

// A client that sends and reads at once may send any number: nothing is kept.
func TestCheckInFlatMemory(t *testing.T) {
	const units = 200_000
	url, _ := serve(t, newFake(), nil)
	pr, pw := io.Pipe()
	go func() {
		w := bufio.NewWriter(pw)
		for i := range units {
			fmt.Fprintf(w, `{"collection":"landcover","tile_id":"33UXP/t%06d","identity":{"version":"1","scene":"S2A_MSIL2A_%06d"}}`+"\n", i, i)
		}
		pw.CloseWithError(w.Flush())
	}()
	req, _ := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/units:check", pr)
	req.Header.Set("Content-Type", ndjson)
	req.Header.Set("Authorization", "Bearer read")
	before := heap()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var n int
	var last []byte
	var most uint64
	scanner := bufio.NewScanner(res.Body)
	for ; scanner.Scan(); n++ {
		last = append(last[:0], scanner.Bytes()...)
		if n%(units/10) == 0 {
			most = max(most, heap())
		}
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	if n != units+1 || !bytes.HasPrefix(last, []byte(`{"summary":{`)) {
		t.Errorf("%d lines, the last %s", n, last)
	}
	const bound = 8 << 20
	if most > before+bound {
		t.Errorf("the heap grew by %d KiB, more than %d", (most-before)>>10, bound>>10)
	}
}

// heap in use after collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// ⚗ A client that reads nothing until it has sent everything (urllib) fills both
// directions. It is cut off; the server keeps nothing for it, and lives.
func TestCheckCutsOffWhoDoesNotRead(t *testing.T) {
	defer func(was time.Duration) { idle = was }(idle)
	idle = 300 * time.Millisecond
	url, log := serve(t, newFake(), nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/units:check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer read\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", ndjson, 1<<30)
	block := []byte(strings.Repeat(oneUnit+"\n", 1000))
	deadline := time.Now().Add(30 * time.Second)
	_ = conn.SetDeadline(deadline)
	for err == nil {
		_, err = conn.Write(block)
	}
	if time.Now().After(deadline) {
		t.Fatal("the client still waits")
	}
	for !strings.Contains(log.String(), "the answers were not read") {
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say why: %s", log)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if res, body := call(t, "POST", url+"/v1/units:check", "read", ndjson, oneUnit); res.StatusCode != 200 {
		t.Errorf("the server answers %d %s", res.StatusCode, body)
	}
}

// A client that stands still while sending is cut off too.
func TestCheckCutsOffWhoStandsStill(t *testing.T) {
	defer func(was time.Duration) { idle = was }(idle)
	idle = 200 * time.Millisecond
	url, _ := serve(t, newFake(), nil)
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() { _, _ = pw.Write([]byte(oneUnit + "\n")) }()
	req, _ := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/units:check", pr)
	req.Header.Set("Content-Type", ndjson)
	req.Header.Set("Authorization", "Bearer read")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	units, last := lines(t, string(body))
	if len(units) != 1 || last.Error == nil || last.Error.Code != CodeInvalidRequest {
		t.Errorf("answer %s", body)
	}
}
