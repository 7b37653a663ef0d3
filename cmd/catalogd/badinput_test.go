package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"catalogd/internal/catalog"
	"catalogd/internal/invariant"
	"catalogd/internal/rastertest"
)

// leaks is what no detail may say: words of Go, of its libraries and of the system.
var leaks = regexp.MustCompile(`%!|<nil>|goroutine|\.go:|pgx|pgconn|SQLSTATE|dial |sql:|json:|Unmarshal|errgroup|context (canceled|deadline)|openat|fstat|lstat|renameat|no such file|invalid argument|file exists|EOF|0x[0-9a-f]{6}|X-Amz-|secret-`)

// wantProblem asserts that an answer is a problem with this code, at this field,
// in words for people. It may quote what the caller sent.
func wantProblem(t testing.TB, a answer, code catalog.Code, field string, sent ...string) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal(a.body, &p); err != nil || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %s %s: no problem; want %s", a.status, a.header.Get("Content-Type"), a.body, code)
		return p
	}
	if p.Code != string(code) || p.Status != code.Status() || a.status != code.Status() || p.Type != "/problems/"+string(code) || p.Field != field {
		t.Errorf("%d %s; want %d %s at %q", a.status, a.body, code.Status(), code, field)
	}
	if p.Title == "" || p.Instance == "" || p.Instance != a.header.Get("X-Request-Id") {
		t.Errorf("%s: no title, or another instance than the request %s", a.body, a.header.Get("X-Request-Id"))
	}
	detail := p.Detail
	for _, text := range sent {
		detail = strings.ReplaceAll(detail, text, "")
	}
	if len(detail) < 20 || leaks.MatchString(detail) {
		t.Errorf("%s: detail %q is not for people", code, p.Detail)
	}
	if a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") == "" {
		t.Errorf("%s: no Retry-After", code)
	}
	if code != "staged_unreadable" && code != "store_forbidden" && strings.Contains(detail, "/catalogd-test-") {
		t.Errorf("%s: detail %q gives a path of the server away", code, p.Detail)
	}
	return p
}

// refuses asserts that nothing came of a refused request: no row, no object, and
// a server that goes on.
func (s *site) refuses(p *process, seed byte, request func()) {
	s.Helper()
	rows, files := s.count(`SELECT count(*) FROM catalog.tiles`), len(s.outputs())
	request()
	if n := s.count(`SELECT count(*) FROM catalog.tiles`) - rows; n != 0 {
		s.Errorf("%d rows of a refused request", n)
	}
	if n := len(s.outputs()) - files; n != 0 {
		s.Errorf("%d objects of a refused request", n)
	}
	p.do(newUnit("landcover", "good/"+uuid.NewString(), "v1"), pixels(seed))
}

// outputs are all files at final names.
func (s *site) outputs() (keys []string) {
	for _, key := range s.files("") {
		if !strings.HasPrefix(key, ".") && !strings.HasPrefix(key, "current/") {
			keys = append(keys, key)
		}
	}
	return keys
}

// What is wrong with the request itself, sent to both calls that begin.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start()
	p.collection("landcover", nil)
	taken := newUnit("landcover", "t1", "v1")
	request := func(u unit, client string) map[string]any {
		return map[string]any{
			"collection": u.Collection, "tile_id": u.TileID, "identity": u.Identity, "owner": u.Owner, "request_id": u.RequestID, "client_key": client,
		}
	}
	must[decision](p, "POST", "/v1/attempts", request(taken, "mine"))

	const good = `{"version":"v1"}`
	type bad struct{ name, member, json, code, field string }
	long := strings.Repeat("x", 600)
	tests := []bad{
		{"unknown collection", "collection", `"landuse"`, "unknown_collection", "/collection"},
		{"collection in capitals", "collection", `"Landcover"`, "invalid_collection", "/collection"},
		{"collection current", "collection", `"current"`, "invalid_collection", "/collection"},
		{"collection outside", "collection", `"../landcover"`, "invalid_collection", "/collection"},
		{"media type", "media_type", `"image/png"`, "invalid_media_type", "/media_type"},
		{"owner empty", "owner", `""`, "invalid_request", "/owner"},
		{"owner of two lines", "owner", `"a\nb"`, "invalid_request", "/owner"},
		{"owner no text", "owner", `7`, "invalid_request", "/owner"},
		{"request_id empty", "request_id", `""`, "invalid_request", "/request_id"},
		{"try below zero", "try", `-1`, "invalid_request", "/try"},
		{"properties no object", "properties", `[]`, "invalid_request", "/properties"},
		{"acquired backwards", "acquired", `{"start":"2026-08-04T10:00:00Z","end":"2026-08-03T10:00:00Z"}`, "invalid_request", "/acquired/end"},
		{"client key of another unit", "client_key", `"mine"`, "key_collision", ""},

		{"identity null", "identity", `null`, "invalid_identity", "/identity"},
		{"identity text", "identity", `"v1"`, "invalid_identity", "/identity"},
		{"no version", "identity", `{}`, "invalid_identity", "/identity/version"},
		{"version no text", "identity", `{"version":1}`, "invalid_identity", "/identity/version"},
		{"version empty", "identity", `{"version":""}`, "invalid_identity", "/identity/version"},
		{"duplicate key", "identity", `{"version":"v1","a":{"b":1,"b":1}}`, "invalid_identity", "/identity/a/b"},
		{"duplicate key, escaped", "identity", `{"version":"v1","x":1,"\u0078":2}`, "invalid_identity", "/identity/x"},
		{"lone surrogate", "identity", `{"version":"v1","a":["\ud800"]}`, "invalid_identity", "/identity/a/0"},
		{"NUL", "identity", `{"version":"v1","a":"\u0000"}`, "invalid_identity", "/identity/a"},
		{"integer beyond 2^53", "identity", `{"version":"v1","n":9007199254740993}`, "invalid_identity", "/identity/n"},
		{"not finite", "identity", `{"version":"v1","n":1e999}`, "invalid_identity", "/identity/n"},
		{"NaN", "identity", `{"version":"v1","n":NaN}`, "invalid_identity", "/identity/n"},
		{"not UTF-8", "identity", "{\"version\":\"v1\",\"a\":\"\xff\"}", "invalid_identity", "/identity/a"},
		{"pointer with a slash", "identity", `{"version":"v1","a/b":NaN}`, "invalid_identity", "/identity/a~1b"},
		{"identity too long", "identity", `{"version":"v1","a":"` + strings.Repeat("x", 70_000) + `"}`, "invalid_identity", "/identity"},
	}
	for _, id := range []string{
		"", "..", "../t1", "a/../../b", "a/./b", "/etc/passwd", "a//b", "a/", ".hidden", "a/.b", `a\\b`, "ä", "a b", "a%2fb", long,
		"a.tif/b", "t1.0123456789ab.0123456789ab",
	} {
		tests = append(tests, bad{"tile id " + id[:min(len(id), 20)], "tile_id", `"` + id + `"`, "invalid_tile_id", "/tile_id"})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := s.within(t)
			p.t = t
			for _, path := range []string{"/v1/attempts", "/v1/outputs"} {
				members := map[string]string{
					"collection": `"landcover"`, "tile_id": `"t2"`, "identity": good, "owner": `"w"`, "request_id": `"` + uuid.NewString() + `"`,
				}
				if path == "/v1/outputs" {
					members["staged"] = `"nothing.tif"`
				}
				members[test.member] = test.json
				var body []string
				for name, value := range members {
					body = append(body, `"`+name+`":`+value)
				}
				wantProblem(s, p.ask("POST", path, []byte("{"+strings.Join(body, ",")+"}")), catalog.Code(test.code), test.field)
			}
		})
	}
	p.t = t
	s.refuses(p, 1, func() {
		wantProblem(t, p.ask("POST", "/v1/attempts", []byte(`{"collection":`)), "invalid_request", "/collection")
		wantProblem(t, p.ask("POST", "/v1/attempts", []byte(`[]`)), "invalid_request", "")
		wantProblem(t, p.ask("POST", "/v1/attempts/"+uuid.NewString()+"/complete", nil), "unknown_attempt", "")
		wantProblem(t, p.ask("PUT", "/v1/attempts/"+uuid.NewString()+"/output", strings.NewReader("x")), "unknown_attempt", "")
	})
	if n := s.count(`SELECT count(*) FROM catalog.units WHERE tile_id NOT LIKE 'good/%'`); n != 1 {
		t.Errorf("%d units of refused requests", n-1)
	}
	invariant.Check(t, s.database, s.store, invariant.Options{Linked: true})
}

// Staged names that lead elsewhere.
func TestBadStagedNames(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start()
	p.collection("landcover", nil)
	others := p.run(newUnit("landcover", "others", "v1"))
	write(t, others.StagingPath, pixels(1))
	done := p.do(newUnit("landcover", "done", "v1"), pixels(2))
	outside := filepath.Join(reachable(t), "outside.tif")
	write(t, outside, pixels(3))
	ok(t, os.Symlink(filepath.Dir(outside), s.path(".staging/in/out")))
	ok(t, os.Symlink(outside, s.path(".staging/in/link.tif")))
	ok(t, os.Mkdir(s.path(".staging/in/dir.tif"), 0o755))
	ok(t, syscall.Mkfifo(s.path(".staging/in/fifo.tif"), 0o666))
	write(t, s.path(".staging/in/linked.tif"), pixels(4))
	ok(t, os.Link(s.path(".staging/in/linked.tif"), s.path(".staging/in/linked-too.tif")))
	write(t, s.path(".staging/in/empty.tif"), nil)

	for staged, code := range map[string]catalog.Code{
		"../" + path.Base(others.StagingKey): "staged_forbidden", // another attempt's
		"../../" + done.Tile.ObjectKey:       "staged_forbidden",
		"../../.catalogd/store.json":         "staged_forbidden",
		outside:                              "staged_forbidden",
		"a/../../x.tif":                      "staged_forbidden",
		"./x.tif":                            "staged_forbidden",
		"a//x.tif":                           "staged_forbidden",
		`..\x.tif`:                           "staged_forbidden",
		"..":                                 "staged_forbidden",
		"out/outside.tif":                    "staged_forbidden",
		"link.tif":                           "staged_forbidden",
		"dir.tif":                            "staged_forbidden",
		"fifo.tif":                           "staged_forbidden",
		"linked.tif":                         "staged_linked",
		"empty.tif":                          "empty_output",
		"absent.tif":                         "staged_missing",
	} {
		t.Run(strings.NewReplacer("/", "|").Replace(staged), func(t *testing.T) {
			s := s.within(t)
			p.t = t
			s.refuses(p, 2, func() {
				u := newUnit("landcover", "t1", "v1")
				got := p.ask("POST", "/v1/outputs", map[string]any{
					"collection": u.Collection, "tile_id": u.TileID, "identity": u.Identity, "owner": u.Owner, "request_id": u.RequestID, "staged": staged,
				})
				field := ""
				if strings.Contains(string(got.body), `"/staged"`) {
					field = "/staged" // where the name itself tells
				}
				wantProblem(s, got, code, field, staged)
			})
		})
	}
	p.t = t
	if got := p.complete(others); got.Tile.Checksum != checksum(pixels(1)) {
		t.Errorf("the other attempt's output: %+v", got)
	}
	if content, err := os.ReadFile(outside); err != nil || !bytes.Equal(content, pixels(3)) {
		t.Errorf("the file outside: %v", err)
	}
	invariant.Check(t, s.database, s.store, invariant.Options{Quiet: true, Linked: true})
}

// A staged file that another attempt is promoting is that one's.
func TestStagedFileInUse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	hold := t.TempDir()
	slow, p := s.start(envHold+"=intended:"+hold), s.start()
	// At its start a server rolls forward what another holds.
	poll(t, "the start to be over", func() bool { return strings.Contains(p.said(), "what a crash left has been looked for") })
	p.collection("landcover", nil)
	write(t, s.path(".staging/in/x.tif"), pixels(1))
	request := func(u unit) map[string]any {
		return map[string]any{
			"collection": u.Collection, "tile_id": u.TileID, "identity": u.Identity, "owner": u.Owner, "request_id": u.RequestID, "staged": "x.tif",
		}
	}
	one, two := newUnit("landcover", "t1", "v1"), newUnit("landcover", "t2", "v1")
	registered := make(chan answer, 1)
	go func() {
		got, err := slow.send("POST", "/v1/outputs", request(one))
		if err != nil {
			t.Errorf("register: %v", err)
		}
		registered <- got
	}()
	poll(t, "the step to be held", exists(filepath.Join(hold, "held")))
	s.refuses(p, 2, func() {
		wantProblem(t, p.ask("POST", "/v1/outputs", request(two)), "staged_in_use", "/staged")
		wantProblem(t, p.ask("POST", "/v1/outputs", request(one.again())), "unit_held", "")
	})
	ok(t, os.WriteFile(filepath.Join(hold, "go"), nil, 0o644))
	read[outcome](t, <-registered)
	wantProblem(t, p.ask("POST", "/v1/outputs", request(two)), "staged_missing", "/staged")
	s.done(p, one, pixels(1))
	s.sound(p)
}

// Without its probe the server takes nothing, and says nothing of the file.
func TestNoProbe(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start("CATALOGD_PROBE=" + filepath.Join(t.TempDir(), "catalogd-probe"))
	p.collection("landcover", nil)
	u := newUnit("landcover", "t1", "v1")
	a := p.run(u)
	write(t, a.StagingPath, pixels(1))
	wantProblem(t, p.ask("POST", a.path("complete"), nil), "probe_unavailable", "")
	p.kill()
	p = s.start()
	p.complete(a)
	s.done(p, u, pixels(1))
	s.sound(p)
}

// What is wrong with the file. The attempt stays open: the task mends its file
// and completes again.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start()
	p.collection("landcover", nil)
	dir := t.TempDir()
	source := filepath.Join(dir, "source.tif")
	write(t, source, rastertest.Raster{Width: 1000, Height: 1000}.Bytes())
	deflated := filepath.Join(dir, "deflated.tif")
	gdal(t, "gdal_translate", "-q", "-co", "TILED=YES", "-co", "COMPRESS=DEFLATE", source, deflated)
	whole, err := os.ReadFile(deflated)
	ok(t, err)
	sparse := filepath.Join(dir, "sparse.tif")
	gdal(t, "gdal_create", "-q", "-outsize", "1000", "1000", "-a_srs", "EPSG:32633", "-a_ullr", "500000", "5800000", "510000", "5790000",
		"-co", "SPARSE_OK=TRUE", "-co", "TILED=YES", sparse)
	png := filepath.Join(dir, "out.png")
	gdal(t, "gdal_translate", "-q", "-of", "PNG", source, png)
	vrt := filepath.Join(dir, "out.vrt")
	gdal(t, "gdal_translate", "-q", "-of", "VRT", source, vrt)

	copyOf := func(name string) func(string) {
		return func(to string) {
			content, err := os.ReadFile(name)
			ok(t, err)
			write(t, to, content)
		}
	}
	bytesOf := func(content []byte) func(string) { return func(to string) { write(t, to, content) } }
	good := map[string]any{}
	tests := []struct {
		name  string
		make  func(staged string)
		body  map[string]any
		code  catalog.Code
		field string
	}{
		{"nothing", func(string) {}, good, "staged_missing", ""},
		{"zero bytes", bytesOf(nil), good, "empty_output", ""},
		{"text", bytesOf([]byte(strings.Repeat("unit,area\nt1,7\n", 100))), good, "not_a_raster", ""},
		{"one byte", bytesOf([]byte("I")), good, "not_a_raster", ""},
		{"PNG", copyOf(png), good, "driver_refused", ""},
		{"VRT", copyOf(vrt), good, "driver_refused", ""},
		{"truncated header", bytesOf(whole[:100]), good, "truncated", ""},
		{"truncated at a half", bytesOf(whole[:len(whole)/2]), good, "truncated", ""},
		{"truncated at nine tenths", bytesOf(whole[:len(whole)*9/10]), good, "truncated", ""},
		{"truncated by a byte", bytesOf(whole[:len(whole)-1]), good, "truncated", ""},
		{"sparse", bytesOf(rastertest.Raster{Missing: 3}.Bytes()), good, "sparse", ""},
		{"sparse of GDAL", copyOf(sparse), good, "sparse", ""},
		{"no CRS", bytesOf(rastertest.Raster{EPSG: -1}.Bytes()), good, "no_crs", ""},
		{"tags of another unit", bytesOf(rastertest.Raster{Tags: map[string]string{"CATALOGD_UNIT_KEY": uuid.NewString()}}.Bytes()), good, "identity_mismatch", ""},
		{"tags of another version", bytesOf(rastertest.Raster{Tags: map[string]string{"CATALOGD_VERSION": "v0"}}.Bytes()), good, "identity_mismatch", ""},
		{"wrong size", bytesOf(pixels(7)), map[string]any{"size_bytes": len(pixels(7)) + 1}, "size_mismatch", "/size_bytes"},
		{"wrong checksum", bytesOf(pixels(7)), map[string]any{"checksum": checksum(pixels(8))}, "checksum_mismatch", "/checksum"},
		{"checksum of another kind", bytesOf(pixels(7)), map[string]any{"checksum": "md5:d41d8cd98f00b204e9800998ecf8427e"}, "invalid_request", "/checksum"},
		{"two links", func(to string) {
			write(t, to, pixels(7))
			ok(t, os.Link(to, s.path("second-link")))
		}, good, "staged_linked", ""},
		{"symbolic link", func(to string) { ok(t, os.Symlink(source, to)) }, good, "staged_forbidden", ""},
		{"FIFO", func(to string) { ok(t, syscall.Mkfifo(to, 0o666)) }, good, "staged_forbidden", ""},
		{"directory", func(to string) { ok(t, os.Mkdir(to, 0o755)) }, good, "staged_forbidden", ""},
	}
	opened := watchOpens(t, source)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := s.within(t)
			p.t = t
			u := newUnit("landcover", strings.ReplaceAll(test.name, " ", "-"), "v1")
			a := p.run(u)
			s.refuses(p, 3, func() {
				test.make(a.StagingPath)
				wantProblem(s, p.ask("POST", a.path("complete"), test.body), test.code, test.field, a.StagingPath)
				_ = os.Remove(s.path("second-link"))
				// The same by the other way, under the name of another unit.
				o := newUnit("landcover", "o-"+u.TileID, "v1")
				test.make(s.path(".staging/in/" + o.TileID + ".tif"))
				request := map[string]any{
					"collection": o.Collection, "tile_id": o.TileID, "identity": o.Identity, "owner": o.Owner, "request_id": o.RequestID, "staged": o.TileID + ".tif",
				}
				for name, value := range test.body {
					request[name] = value
				}
				field := test.field
				if test.code == "staged_missing" {
					field = "/staged" // there is nothing else to send it in
				}
				wantProblem(s, p.ask("POST", "/v1/outputs", request), test.code, field)
				_ = os.Remove(s.path("second-link"))
				ok(t, os.RemoveAll(s.path(".staging/in/"+o.TileID+".tif")))
			})
			ok(t, os.RemoveAll(a.StagingPath))
			write(t, a.StagingPath, pixels(4))
			if out := p.complete(a); out.State != "done" {
				t.Errorf("mended: %+v", out)
			}
		})
	}
	p.t = t
	if opened() {
		t.Error("the file that the VRT refers to was opened")
	}

	t.Run("killed writer", func(t *testing.T) {
		s := s.within(t)
		p.t = t
		a := p.run(newUnit("landcover", "killed", "v1"))
		cmd := exec.Command("gdal_create", "-q", "-outsize", "30000", "30000", "-burn", "1", "-a_srs", "EPSG:32633",
			"-a_ullr", "500000", "5800000", "800000", "5500000", "-co", "TILED=YES", "-co", "COMPRESS=DEFLATE", a.StagingPath)
		cmd.Env = append(os.Environ(), "GDAL_CACHEMAX=2")
		ok(t, cmd.Start())
		poll(t, "the writer to have written", func() bool {
			info, err := os.Stat(a.StagingPath)
			return err == nil && info.Size() > 16<<10
		})
		ok(t, cmd.Process.Kill())
		_ = cmd.Wait()
		s.refuses(p, 5, func() {
			got := p.ask("POST", a.path("complete"), nil)
			var said problem
			_ = json.Unmarshal(got.body, &said)
			if said.Code != "sparse" && said.Code != "truncated" {
				t.Errorf("a killed writer's file: %d %s", got.status, got.body)
			}
		})
		ok(t, os.Remove(a.StagingPath))
		gdal(t, "gdal_translate", "-q", source, a.StagingPath)
		p.complete(a)
	})
	p.t = t
	s.sound(p)
}

// gdal runs one of GDAL's programs.
func gdal(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// watchOpens tells whether a file was opened since.
func watchOpens(t testing.TB, name string) (opened func() bool) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	ok(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	_, err = unix.InotifyAddWatch(fd, name, unix.IN_OPEN)
	ok(t, err)
	return func() bool {
		n, _ := unix.Read(fd, make([]byte, 4096))
		return n > 0
	}
}

// Every raster at hand is registered with what gdalinfo says of it, or refused
// with the right code.
func TestRealRasters(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("../../../shared/data/rasters/*.tif")
	ok(t, err)
	if len(names) == 0 {
		t.Log("no ../shared/data/rasters: nothing to register")
		return
	}
	s := newSite(t)
	p := s.start()
	p.collection("landcover", nil)
	refused := map[string]catalog.Code{"float_nan.tif": "no_crs"}
	for i, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			s := s.within(t)
			p.t = t
			raster, err := os.ReadFile(name)
			ok(t, err)
			u := newUnit("landcover", strings.TrimSuffix(filepath.Base(name), ".tif"), "v1")
			a := p.run(u)
			if i%2 == 0 {
				write(t, a.StagingPath, raster)
			} else {
				must[struct{}](p, "PUT", a.path("output"), bytes.NewReader(raster))
			}
			got := p.ask("POST", a.path("complete"), map[string]any{"size_bytes": len(raster), "checksum": checksum(raster)})
			if code, bad := refused[filepath.Base(name)]; bad {
				wantProblem(t, got, code, "")
				must[struct{}](p, "POST", a.path("abandon"), nil)
				return
			}
			tile := read[outcome](t, got).Tile
			var info struct {
				Size []int `json:"size"`
				STAC struct {
					EPSG *int `json:"proj:epsg"`
				} `json:"stac"`
			}
			ok(t, json.Unmarshal([]byte(gdal(t, "gdalinfo", "-json", name)), &info))
			if tile.Width != info.Size[0] || tile.Height != info.Size[1] {
				t.Errorf("%d × %d, gdalinfo has %v", tile.Width, tile.Height, info.Size)
			}
			if tile.CRS == nil {
				t.Error("no CRS")
			} else if epsg := info.STAC.EPSG; epsg != nil && *tile.CRS != fmt.Sprintf("EPSG:%d", *epsg) {
				t.Errorf("CRS %s, gdalinfo has EPSG:%d", *tile.CRS, *epsg)
			} else {
				t.Logf("%d × %d, CRS %.60s", tile.Width, tile.Height, *tile.CRS)
			}
			s.done(p, u, raster)
		})
	}
	p.t = t
	s.sound(p)
}
