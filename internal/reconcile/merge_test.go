package reconcile

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"catalogd/internal/catalog"
)

// joined is what a join yielded.
type joined struct{ pairs, rows, objects []string }

func (j *joined) both(r Row, o catalog.Object) error {
	if r.ObjectKey != o.Key {
		return errors.New(r.ObjectKey + " with " + o.Key)
	}
	j.pairs = append(j.pairs, o.Key)
	return nil
}

func (j *joined) onlyRow(r Row) error { j.rows = append(j.rows, r.ObjectKey); return nil }

func (j *joined) onlyObject(o catalog.Object) error { j.objects = append(j.objects, o.Key); return nil }

func rowsOf(keys ...string) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		for _, key := range keys {
			if !yield(Row{ObjectKey: key}, nil) {
				return
			}
		}
	}
}

func objectsOf(broken error, keys ...string) iter.Seq2[catalog.Object, error] {
	return func(yield func(catalog.Object, error) bool) {
		for _, key := range keys {
			if !yield(catalog.Object{Key: key}, nil) {
				return
			}
		}
		if broken != nil {
			yield(catalog.Object{}, broken)
		}
	}
}

// A join is what sets say it is, whatever the keys: names that are not UTF-8, and names
// that begin as others do.
func TestJoin(t *testing.T) {
	key := rapid.StringMatching(`[a-c/.\x{ff}-]{1,6}`)
	rapid.Check(t, func(t *rapid.T) {
		left, right := map[string]bool{}, map[string]bool{}
		for _, k := range rapid.SliceOf(key).Draw(t, "rows") {
			left[k] = true
		}
		for _, k := range rapid.SliceOf(key).Draw(t, "objects") {
			right[k+rapid.SampledFrom([]string{"", "\xff"}).Draw(t, "end")] = true
		}
		var want joined
		for _, k := range slices.Sorted(maps.Keys(left)) {
			if right[k] {
				want.pairs = append(want.pairs, k)
			} else {
				want.rows = append(want.rows, k)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(right)) {
			if !left[k] {
				want.objects = append(want.objects, k)
			}
		}
		var got joined
		err := join(context.Background(), rowsOf(slices.Sorted(maps.Keys(left))...), objectsOf(nil, slices.Sorted(maps.Keys(right))...), &got)
		if err != nil || !slices.Equal(got.pairs, want.pairs) || !slices.Equal(got.rows, want.rows) || !slices.Equal(got.objects, want.objects) {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
	})
}

// Disorder, a name twice, and a listing that breaks off are errors, on either side, and
// name the keys.
func TestJoinDisorder(t *testing.T) {
	torn := errors.New("torn")
	for _, c := range []struct {
		name    string
		rows    []string
		objects []string
		broken  error
		want    string
	}{
		{"objects in disorder", []string{"a", "b", "c"}, []string{"a", "c", "b"}, nil, `the listing has "b" after "c"`},
		{"rows in disorder", []string{"b", "a"}, nil, nil, `the catalogue has "a" after "b"`},
		{"an object twice", []string{"a"}, []string{"a", "a"}, nil, `the listing has "a" twice`},
		{"a row twice", []string{"a", "a"}, []string{"b"}, nil, `the catalogue has "a" twice`},
		{"not even begun", []string{"a"}, nil, torn, "torn"},
		{"in the middle", []string{"a", "c"}, []string{"a", "b"}, torn, "torn"},
		{"after the last row", []string{"a"}, []string{"a", "b", "c"}, torn, "torn"},
	} {
		var got joined
		err := join(t.Context(), rowsOf(c.rows...), objectsOf(c.broken, c.objects...), &got)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		// Nothing that the listing did not come to is missing from it.
		if c.broken != nil && slices.Contains(got.rows, "c") {
			t.Errorf("%s: %q is missing from a listing that did not come so far", c.name, got.rows)
		}
	}
}

// enough ends a join after so many objects.
type enough struct{ n int }

func (*enough) both(Row, catalog.Object) error { return nil }
func (*enough) onlyRow(Row) error              { return nil }

func (e *enough) onlyObject(catalog.Object) error {
	if e.n--; e.n == 0 {
		return errStopped
	}
	return nil
}

// What is read ahead is bounded, and nothing is read any more when a join has ended.
func TestAhead(t *testing.T) {
	read := 0
	endless := func(yield func(catalog.Object, error) bool) {
		for yield(catalog.Object{Key: fmt.Sprintf("%09d", read)}, nil) {
			read++
		}
	}
	if err := join(t.Context(), rowsOf(), endless, &enough{10 * pageSize}); !errors.Is(err, errStopped) {
		t.Fatal(err)
	}
	if most := (10 + pagesAhead + 3) * pageSize; read > most {
		t.Errorf("read %d, want at most %d", read, most)
	}
}
