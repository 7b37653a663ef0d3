// Package storagetest is the suite that every store passes:
//
//	func TestStore(t *testing.T) {
//		storagetest.Run(t, func(t *testing.T) storage.Store { … })
//	}
//
// open gives each test an empty store of its own. The suite uses the Store
// interface only; what a backend can do besides (hard links, fsync, multipart) it
// tests itself. A store that is a storage.Linker too is held to that.
package storagetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"

	"catalogd/internal/storage"
)

// Names of one attempt, as the suite uses them.
const (
	staged = ".staging/0190-a1.tif"
	final  = "landcover/33UXP/2026-08-04.0123456789ab.cdef01234567.tif"
)

// Run runs the suite.
func Run(t *testing.T, open func(t *testing.T) storage.Store) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s storage.Store)
	}{
		{"Sentinel", testSentinel},
		{"PrepareStaging", testPrepare},
		{"WriteStaged", testWriteStaged},
		{"WriteStagedFails", testWriteStagedFails},
		{"OpenStaged", testOpenStaged},
		{"Promote", testPromote},
		{"PromoteAgain", testPromoteAgain},
		{"PromoteChanged", testPromoteChanged},
		{"PromoteExist", testPromoteExist},
		{"PromoteNothing", testPromoteNothing},
		{"PromoteAtOnce", testPromoteAtOnce},
		{"PromoteManyAtOnce", testPromoteManyAtOnce},
		{"Object", testObject},
		{"Existing", testExisting},
		{"Settle", testSettle},
		{"Delete", testDelete},
		{"Names", testNames},
		{"ListOrder", testListOrder},
		{"ListOwn", testListOwn},
		{"ListStops", testListStops},
		{"ListRandom", testListRandom},
		{"ListRange", testListRange},
		{"Rename", testRename},
		{"ContextDone", testContextDone},
		{"Linker", testLinker},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// Put writes content to a staging name of its own, promotes it to key, and tidies.
func Put(t testing.TB, s storage.Store, key, content string) {
	t.Helper()
	name := storage.StagingPrefix + rand.Text() + ".tif"
	ok(t, s.Promote(t.Context(), name, key, Stage(t, s, name, content)))
	ok(t, s.Delete(t.Context(), name)) // where promotion leaves it
}

// Stage writes content to a staging name and returns its fingerprint.
func Stage(t testing.TB, s storage.Store, key, content string) string {
	t.Helper()
	_, _, err := s.WriteStaged(t.Context(), key, strings.NewReader(content), 1<<30)
	ok(t, err)
	f, err := s.OpenStaged(t.Context(), key)
	ok(t, err)
	defer f.Close()
	return f.Fingerprint()
}

// Keys lists the keys under prefix.
func Keys(t testing.TB, s storage.Store, prefix string) []string {
	t.Helper()
	keys := []string{}
	for o, err := range s.List(t.Context(), storage.Under(prefix)) {
		ok(t, err)
		keys = append(keys, o.Key)
	}
	return keys
}

// Content reads the object at key.
func Content(t testing.TB, s storage.Store, key string) string {
	t.Helper()
	r, _, err := s.Open(t.Context(), key)
	ok(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	ok(t, err)
	return string(b)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, expected %v", err, want)
	}
}

func same[T comparable](t testing.TB, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, expected %v", got, want)
	}
}

func absent(t testing.TB, s storage.Store, key string) {
	t.Helper()
	_, err := s.Stat(t.Context(), key)
	is(t, err, storage.ErrNotExist)
}

func testSentinel(t *testing.T, s storage.Store) {
	ok(t, s.Sentinel(t.Context()))
	if s.ID() == "" {
		t.Fatal("no id")
	}
}

func testPrepare(t *testing.T, s storage.Store) {
	ok(t, s.PrepareStaging(t.Context(), staged, final))
	ok(t, s.PrepareStaging(t.Context(), staged, final))
	ok(t, s.PrepareStaging(t.Context(), storage.IncomingPrefix+"job/7.tif", final))
	same(t, len(Keys(t, s, "")), 0)
	same(t, len(Keys(t, s, storage.StagingPrefix)), 0)
}

func testWriteStaged(t *testing.T, s storage.Store) {
	for _, size := range []int{0, 1, 1 << 20} {
		content := bytes.Repeat([]byte{7}, size)
		n, sum, err := s.WriteStaged(t.Context(), staged, iotest.HalfReader(bytes.NewReader(content)), int64(size))
		ok(t, err)
		same(t, n, int64(size))
		want := sha256.Sum256(content)
		same(t, sum, hex.EncodeToString(want[:]))
		same(t, Content(t, s, staged), string(content))
		same(t, strings.Join(Keys(t, s, storage.StagingPrefix), " "), staged)
	}
}

func testWriteStagedFails(t *testing.T, s storage.Store) {
	Stage(t, s, staged, "before")
	broken := errors.New("connection reset")
	cancelled, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, test := range []struct {
		name string
		ctx  context.Context
		r    io.Reader
		want error
	}{
		{"limit", t.Context(), strings.NewReader("0123456789a"), storage.ErrTooLarge},
		{"reader", t.Context(), io.MultiReader(strings.NewReader("01"), iotest.ErrReader(broken)), broken},
		{"cancelled", cancelled, io.MultiReader(strings.NewReader("01"), readerFunc(func([]byte) (int, error) {
			cancel()
			return 0, nil
		})), context.Canceled},
		{"cancelled at the end", cancelled, strings.NewReader(""), context.Canceled},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := s.WriteStaged(test.ctx, staged, test.r, 10)
			is(t, err, test.want)
			same(t, Content(t, s, staged), "before")
			same(t, strings.Join(Keys(t, s, storage.StagingPrefix), " "), staged)
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func testOpenStaged(t *testing.T, s storage.Store) {
	_, err := s.OpenStaged(t.Context(), staged)
	is(t, err, storage.ErrNotExist)
	first := Stage(t, s, staged, "hello")
	f, err := s.OpenStaged(t.Context(), staged)
	ok(t, err)
	defer f.Close()
	same(t, f.Size(), 5)
	same(t, f.Fingerprint(), first)
	b := make([]byte, 3)
	n, err := f.ReadAt(b, 1)
	ok(t, err)
	same(t, string(b[:n]), "ell")
	n, err = f.ReadAt(b, 4)
	same(t, n, 1)
	is(t, err, io.EOF)
	if Stage(t, s, staged, "hullo") == first {
		t.Fatal("another object has the same fingerprint")
	}
}

func testPromote(t *testing.T, s storage.Store) {
	ok(t, s.Promote(t.Context(), staged, final, Stage(t, s, staged, "hello")))
	same(t, Content(t, s, final), "hello")
	same(t, strings.Join(Keys(t, s, ""), " "), final)
}

func testPromoteAgain(t *testing.T, s storage.Store) {
	print := Stage(t, s, staged, "hello")
	ok(t, s.Promote(t.Context(), staged, final, print))
	ok(t, s.Delete(t.Context(), staged)) // as tidying does, where promotion leaves it
	ok(t, s.Promote(t.Context(), staged, final, print))
	same(t, Content(t, s, final), "hello")

	// A task that writes again, late, does not undo it either.
	Stage(t, s, staged, "late")
	ok(t, s.Promote(t.Context(), staged, final, print))
	same(t, Content(t, s, final), "hello")
}

func testPromoteChanged(t *testing.T, s storage.Store) {
	print := Stage(t, s, staged, "hello")
	Stage(t, s, staged, "hullo")
	is(t, s.Promote(t.Context(), staged, final, print), storage.ErrChanged)
	absent(t, s, final)
	same(t, Content(t, s, staged), "hullo")
}

func testPromoteExist(t *testing.T, s storage.Store) {
	Put(t, s, final, "first")
	print := Stage(t, s, staged, "second")
	is(t, s.Promote(t.Context(), staged, final, print), storage.ErrExist)
	same(t, Content(t, s, final), "first")
	same(t, Content(t, s, staged), "second")

	ok(t, s.Delete(t.Context(), staged))
	is(t, s.Promote(t.Context(), staged, final, print), storage.ErrExist)
}

func testPromoteNothing(t *testing.T, s storage.Store) {
	is(t, s.Promote(t.Context(), staged, final, "x"), storage.ErrNotExist)
	Put(t, s, final+".other", "neighbour")
	is(t, s.Promote(t.Context(), staged, final, "x"), storage.ErrNotExist)
}

func testPromoteAtOnce(t *testing.T, s storage.Store) {
	for i := range 20 {
		key := fmt.Sprintf("landcover/%d/t.tif", i)
		print := Stage(t, s, staged, "hello")
		atOnce(t, 8, func(int) error { return s.Promote(t.Context(), staged, key, print) })
		same(t, Content(t, s, key), "hello")
	}
}

func testPromoteManyAtOnce(t *testing.T, s storage.Store) {
	const n = 16
	var prints [n]string
	name := func(i int) string { return fmt.Sprintf(".staging/%02d.tif", i) }
	for i := range prints {
		prints[i] = Stage(t, s, name(i), name(i))
	}
	atOnce(t, n, func(i int) error {
		return s.Promote(t.Context(), name(i), fmt.Sprintf("a/b/c/%02d.tif", i), prints[i])
	})
	same(t, len(Keys(t, s, "a/b/c/")), n)
}

// atOnce calls do n times at the same moment; none may fail.
func atOnce(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	start := make(chan struct{})
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = do(i)
		})
	}
	close(start)
	wg.Wait()
	ok(t, errors.Join(errs...))
}

func testObject(t *testing.T, s storage.Store) {
	absent(t, s, final)
	_, _, err := s.Open(t.Context(), final)
	is(t, err, storage.ErrNotExist)

	before := time.Now().Add(-time.Minute)
	Put(t, s, final, "hello")
	o, err := s.Stat(t.Context(), final)
	ok(t, err)
	same(t, o.Key, final)
	same(t, o.SizeBytes, 5)
	if o.Modified.Before(before) || o.Modified.After(time.Now().Add(time.Minute)) {
		t.Fatalf("modified at %v", o.Modified)
	}
	r, opened, err := s.Open(t.Context(), final)
	ok(t, err)
	defer r.Close()
	same(t, opened, o)
	_, err = r.Seek(-3, io.SeekEnd)
	ok(t, err)
	b, err := io.ReadAll(r)
	ok(t, err)
	same(t, string(b), "llo")
	if s.Location(final) == "" {
		t.Fatal("no location")
	}
}

func testSettle(t *testing.T, s storage.Store) {
	_, err := s.Settle(t.Context(), final)
	is(t, err, storage.ErrNotExist)
	Put(t, s, final, "hello")
	f, err := s.Settle(t.Context(), final)
	ok(t, err)
	defer f.Close()
	same(t, f.Size(), 5)
	b := make([]byte, 5)
	_, err = f.ReadAt(b, 0)
	ok(t, err)
	same(t, string(b), "hello")
	// What Settle found is what a repeated Promote would find.
	ok(t, s.Promote(t.Context(), staged, final, f.Fingerprint()))
}

func testExisting(t *testing.T, s storage.Store) {
	ctx := t.Context()
	long := staged + strings.Repeat("x", 300)
	found, err := s.Existing(ctx, []string{staged, long})
	ok(t, err)
	same(t, len(found), 0)
	Stage(t, s, staged, "hello")
	Stage(t, s, staged+".ovr", "overviews")
	Put(t, s, "landcover/a/b", "x")
	found, err = s.Existing(ctx, []string{staged + ".ovr", staged + ".aux", long, staged})
	ok(t, err)
	same(t, len(found), 2)
	same(t, found[0].Key, staged+".ovr")
	same(t, found[0].SizeBytes, int64(len("overviews")))
	same(t, found[1].Key, staged)
	found, err = s.Existing(ctx, []string{"landcover/a", "landcover/b"}) // a directory is no object
	ok(t, err)
	same(t, len(found), 0)
	for _, keys := range [][]string{{staged, final}, {"landcover/../x"}, {"landcover/x", "landcover/"}} {
		_, err = s.Existing(ctx, keys)
		is(t, err, storage.ErrName)
	}
	found, err = s.Existing(ctx, nil)
	ok(t, err)
	same(t, len(found), 0)
}

func testDelete(t *testing.T, s storage.Store) {
	ok(t, s.Delete(t.Context(), final))
	Put(t, s, final, "hello")
	ok(t, s.Delete(t.Context(), final))
	absent(t, s, final)
	ok(t, s.Delete(t.Context(), final))
	Stage(t, s, staged, "hello")
	ok(t, s.Delete(t.Context(), staged))
	absent(t, s, staged)
	is(t, s.Delete(t.Context(), storage.SentinelKey), storage.ErrName)
	ok(t, s.Sentinel(t.Context()))
}

func testNames(t *testing.T, s storage.Store) {
	ctx := t.Context()
	print := Stage(t, s, staged, "hello")
	writeStaged := func(key string) error {
		_, _, err := s.WriteStaged(ctx, key, strings.NewReader(""), 1)
		return err
	}
	openStaged := func(key string) error { _, err := s.OpenStaged(ctx, key); return err }
	stat := func(key string) error { _, err := s.Stat(ctx, key); return err }
	open := func(key string) error { _, _, err := s.Open(ctx, key); return err }
	settle := func(key string) error { _, err := s.Settle(ctx, key); return err }
	from := func(key string) error { return s.Promote(ctx, key, final, print) }
	to := func(key string) error { return s.Promote(ctx, staged, key, print) }
	prepareFrom := func(key string) error { return s.PrepareStaging(ctx, key, final) }
	prepareTo := func(key string) error { return s.PrepareStaging(ctx, staged, key) }
	remove := func(key string) error { return s.Delete(ctx, key) }

	for _, key := range []string{
		"", "/", ".", "..", "/etc/passwd", "../x", "../../etc/passwd", "a/../b", "a/..", "a//b", "a/", "./a", "a/.", "a/./b", "a\x00b",
	} {
		for name, call := range map[string]func(string) error{
			"stat": stat, "open": open, "settle": settle, "promote to": to, "prepare to": prepareTo, "delete": remove,
			"write": writeStaged, "open staged": openStaged, "promote from": from, "prepare from": prepareFrom,
		} {
			if err := call(key); !errors.Is(err, storage.ErrName) {
				t.Errorf("%s %q: got error %v", name, key, err)
			}
		}
	}
	for _, key := range []string{"landcover/t.tif", ".staging", ".staging/", ".staging/../x", ".staging/in/../../x", ".stagingx/a", ".catalogd/x", "current/x"} {
		for name, call := range map[string]func(string) error{
			"write": writeStaged, "open staged": openStaged, "promote from": from, "prepare from": prepareFrom,
		} {
			if err := call(key); !errors.Is(err, storage.ErrName) {
				t.Errorf("%s %q: got error %v", name, key, err)
			}
		}
	}
	for _, key := range []string{storage.SentinelKey, ".catalogd/x", ".staging/x", ".trash/x", "current/x", "current"} {
		for name, call := range map[string]func(string) error{"promote to": to, "prepare to": prepareTo, "settle": settle} {
			if err := call(key); !errors.Is(err, storage.ErrName) {
				t.Errorf("%s %q: got error %v", name, key, err)
			}
		}
	}
	ok(t, s.Sentinel(ctx))
	same(t, Content(t, s, staged), "hello")
}

func testListOrder(t *testing.T, s storage.Store) {
	want := []string{"c/a-b", "c/a.b", "c/a/b", "c/a/b-c", "c/a/b.d/e", "c/a/b0", "c/a0", "c/é", "c/~", "c-1/x", "c0", "d/\xff"}
	if errors.Is(s.PrepareStaging(t.Context(), staged, "d/\xff"), storage.ErrName) {
		want[11] = "d/\ufffd" // where names are UTF-8
	}
	slices.Sort(want)
	for _, i := range []int{7, 3, 11, 0, 5, 9, 1, 10, 2, 8, 6, 4} {
		Put(t, s, want[i], want[i])
	}
	if got := Keys(t, s, ""); !slices.Equal(got, want) {
		t.Fatalf("got %q, expected %q", got, want)
	}
	for o, err := range s.List(t.Context(), storage.Range{}) {
		ok(t, err)
		same(t, o.SizeBytes, int64(len(o.Key)))
		seen, err := s.Stat(t.Context(), o.Key)
		ok(t, err)
		same(t, o, seen)
	}
	same(t, len(Keys(t, s, "nothing/here/")), 0)
}

func testListOwn(t *testing.T, s storage.Store) {
	Put(t, s, "current-1/x", "")
	Put(t, s, "zone/x", "")
	Stage(t, s, ".staging/b.tif", "")
	Stage(t, s, ".staging/in/a.tif", "")
	same(t, strings.Join(Keys(t, s, ""), " "), "current-1/x zone/x")
	same(t, strings.Join(Keys(t, s, "current"), " "), "current-1/x")
	same(t, strings.Join(Keys(t, s, ".staging/"), " "), ".staging/b.tif .staging/in/a.tif")
	same(t, strings.Join(Keys(t, s, ".staging/in/"), " "), ".staging/in/a.tif")
	same(t, strings.Join(Keys(t, s, ".catalogd/"), " "), storage.SentinelKey)
}

func testListStops(t *testing.T, s storage.Store) {
	Put(t, s, "a/1", "")
	Put(t, s, "a/2", "")
	seen := 0
	for _, err := range s.List(t.Context(), storage.Range{}) {
		ok(t, err)
		seen++
		break
	}
	same(t, seen, 1)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range s.List(ctx, storage.Range{}) {
		cancel()
		last = err
	}
	is(t, last, context.Canceled)
}

// testListRandom: whatever the names, List is the sorted set of them, for every
// prefix.
func testListRandom(t *testing.T, s storage.Store) {
	segment := rapid.StringOfN(rapid.SampledFrom([]rune("ab-.0/~é")), 1, 4, -1)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		base := fmt.Sprintf("r%d/", round)
		var want []string
		for _, name := range rapid.SliceOfN(segment, 0, 8).Draw(rt, "names") {
			key := base + name
			if free(key, want) {
				Put(t, s, key, "")
				want = append(want, key)
			}
		}
		slices.Sort(want)
		for _, prefix := range []string{base, base + "a", base + "a/", base + "a/b"} {
			matching := slices.DeleteFunc(slices.Clone(want), func(key string) bool { return !strings.HasPrefix(key, prefix) })
			if got := Keys(t, s, prefix); !slices.Equal(got, matching) {
				rt.Fatalf("under %q: got %q, expected %q", prefix, got, matching)
			}
		}
	})
}

// free tells whether key is a name that could be beside the others, none being
// another's directory.
func free(key string, others []string) bool {
	for segment := range strings.SplitSeq(key, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return false
		}
	}
	return !slices.ContainsFunc(others, func(other string) bool {
		return other == key || strings.HasPrefix(other, key+"/") || strings.HasPrefix(key, other+"/")
	})
}

func testContextDone(t *testing.T, s storage.Store) {
	print := Stage(t, s, staged, "hello")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	is(t, s.Promote(ctx, staged, final, print), context.Canceled)
	is(t, s.PrepareStaging(ctx, staged, final), context.Canceled)
	is(t, s.Delete(ctx, staged), context.Canceled)
	is(t, s.Sentinel(ctx), context.Canceled)
	_, err := s.Stat(ctx, staged)
	is(t, err, context.Canceled)
	same(t, Content(t, s, staged), "hello")
}

func testLinker(t *testing.T, s storage.Store) {
	l, has := s.(storage.Linker)
	if !has {
		return // a store need not be one
	}
	ctx := t.Context()
	const stable = "landcover/33UXP/2026-08-04.tif"
	_, err := l.Linked(ctx, stable)
	is(t, err, storage.ErrNotExist)
	ok(t, l.Unlink(ctx, stable))
	for _, key := range []string{final, final + "2", final + "2"} {
		ok(t, l.Link(ctx, stable, key))
		got, err := l.Linked(ctx, stable)
		ok(t, err)
		same(t, got, key)
	}
	atOnce(t, 8, func(i int) error { return l.Link(ctx, stable, fmt.Sprintf("landcover/%d.tif", i)) })
	same(t, len(Keys(t, s, "")), 0)
	ok(t, l.Unlink(ctx, stable))
	ok(t, l.Unlink(ctx, stable))
	_, err = l.Linked(ctx, stable)
	is(t, err, storage.ErrNotExist)
	atOnce(t, 8, func(i int) error { return l.Link(ctx, stable, fmt.Sprintf("landcover/%d.tif", i)) })

	for name, key := range map[string]string{"b/x.tif": "landcover/x.tif", "b.tif": "landcover/b.tif", "a/1/y.tif": "landcover/y.tif"} {
		ok(t, l.Link(ctx, "links/"+name, key))
	}
	var links []string
	for link, err := range l.Links(ctx) {
		ok(t, err)
		if name, ours := strings.CutPrefix(link.Stable, "links/"); ours {
			links = append(links, name+" "+link.Key)
		}
	}
	same(t, strings.Join(links, ", "), "a/1/y.tif landcover/y.tif, b.tif landcover/b.tif, b/x.tif landcover/x.tif")

	several := []string{stable, "landcover/none/x", stable + "f", "x"}
	for _, name := range []string{stable, stable + "f", "x"} {
		ok(t, l.Link(ctx, name, final))
	}
	ok(t, l.Unlink(ctx, several...))
	ok(t, l.Unlink(ctx))
	for _, name := range several {
		_, err = l.Linked(ctx, name)
		is(t, err, storage.ErrNotExist)
	}

	for _, bad := range []string{"", "..", "../x", "/x", "a//b"} {
		is(t, l.Link(ctx, bad, final), storage.ErrName)
		is(t, l.Link(ctx, stable, bad), storage.ErrName)
		is(t, l.Unlink(ctx, bad), storage.ErrName)
		_, err := l.Linked(ctx, bad)
		is(t, err, storage.ErrName)
	}
	is(t, l.Link(ctx, stable, storage.SentinelKey), storage.ErrName)
}

// testListRange: a range is what of the whole listing lies within its bounds, whatever
// they are.
func testListRange(t *testing.T, s storage.Store) {
	for _, key := range []string{"a/1", "a/2", "a/b/1", "a/b/2", "a/b-1", "a0/1", "b/1", "b/c/d/1", "c/1"} {
		Put(t, s, key, "")
	}
	all := Keys(t, s, "")
	bounds := append([]string{"", "a", "a/", "a/b", "a/b/", "a/b/1", "a/b/15", "b/c", "zz"}, all...)
	for _, prefix := range []string{"", "a", "a/", "b/c/"} {
		for _, from := range bounds {
			for _, to := range bounds {
				var want, got []string
				for _, key := range all {
					if strings.HasPrefix(key, prefix) && key >= from && (to == "" || key < to) {
						want = append(want, key)
					}
				}
				for o, err := range s.List(t.Context(), storage.Range{Prefix: prefix, From: from, To: to}) {
					ok(t, err)
					got = append(got, o.Key)
				}
				if !slices.Equal(got, want) {
					t.Fatalf("below %q from %q to %q: %q, want %q", prefix, from, to, got, want)
				}
			}
		}
	}
}

// testRename: into the trash and back, repeatable, and never over anything.
func testRename(t *testing.T, s storage.Store) {
	const key, trashed = "a/t.tif", storage.TrashPrefix + "1/a/t.tif"
	Put(t, s, key, "content")
	for range 2 { // also where it was done before
		ok(t, s.Rename(t.Context(), key, trashed))
		_, err := s.Stat(t.Context(), key)
		is(t, err, storage.ErrNotExist)
		same(t, Content(t, s, trashed), "content")
	}
	same(t, len(Keys(t, s, "")), 0)
	same(t, strings.Join(Keys(t, s, storage.TrashPrefix), " "), trashed)
	const other = "a/u.tif"
	Put(t, s, other, "another")
	is(t, s.Rename(t.Context(), other, trashed), storage.ErrExist)
	is(t, s.Rename(t.Context(), trashed, other), storage.ErrExist)
	same(t, Content(t, s, trashed)+" "+Content(t, s, other), "content another")
	ok(t, s.Rename(t.Context(), trashed, key))
	same(t, Content(t, s, key), "content")
	is(t, s.Rename(t.Context(), "a/nothing.tif", trashed), storage.ErrNotExist)
	for _, own := range []string{storage.SentinelKey, storage.StagingPrefix + "x.tif", storage.CurrentPrefix + "x.tif", "../x.tif"} {
		is(t, s.Rename(t.Context(), own, trashed), storage.ErrName)
		is(t, s.Rename(t.Context(), key, own), storage.ErrName)
	}
	is(t, s.Rename(t.Context(), key, key), storage.ErrName)
	same(t, Content(t, s, key), "content")
}
