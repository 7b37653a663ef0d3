package reconcile

import (
	"context"
	"fmt"
	"iter"

	"catalogd/internal/catalog"
)

// Joiner takes what a join yields. An error ends the join.
type joiner interface {
	both(row Row, object catalog.Object) error
	onlyRow(row Row) error
	onlyObject(object catalog.Object) error
}

// join merges rows and objects, both in byte order of the key, and each key once. Disorder
// on either side is an error: what was joined before it is as good as ever, what comes
// after is not known.
func join(rows iter.Seq2[Row, error], objects iter.Seq2[catalog.Object, error], to joiner) error {
	nextRow, stopRows := iter.Pull2(rows)
	defer stopRows()
	nextObject, stopObjects := iter.Pull2(objects)
	defer stopObjects()
	left := side[Row]{name: "the catalogue", key: func(r *Row) string { return r.ObjectKey }, next: nextRow}
	right := side[catalog.Object]{name: "the listing", key: func(o *catalog.Object) string { return o.Key }, next: nextObject}
	if err := left.advance(); err != nil {
		return err
	}
	if err := right.advance(); err != nil {
		return err
	}
	for !left.over || !right.over {
		var err error
		switch {
		case right.over || !left.over && left.at < right.at:
			if err = to.onlyRow(left.value); err == nil {
				err = left.advance()
			}
		case left.over || right.at < left.at:
			if err = to.onlyObject(right.value); err == nil {
				err = right.advance()
			}
		default:
			if err = to.both(left.value, right.value); err == nil {
				err = left.advance()
			}
			if err == nil {
				err = right.advance()
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// side is one side of a join, as far as it has been read.
type side[T any] struct {
	name  string
	key   func(*T) string
	next  func() (T, error, bool)
	value T
	at    string
	begun bool
	over  bool
}

func (s *side[T]) advance() error {
	value, err, more := s.next()
	if !more {
		s.over = true
		return nil
	}
	if err != nil {
		return err
	}
	key := s.key(&value)
	if s.begun && key <= s.at {
		if key == s.at {
			return fmt.Errorf("%s has %q twice", s.name, key)
		}
		return fmt.Errorf("%s has %q after %q: it is not in byte order", s.name, key, s.at)
	}
	s.value, s.at, s.begun = value, key, true
	return nil
}

// ahead has a sequence read in a goroutine of its own, so many pages of values ahead, so
// that both sides of a join are waited for at once.
func ahead[T any](ctx context.Context, seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		type page struct {
			values []T
			err    error
		}
		ctx, cancel := context.WithCancel(ctx)
		pages := make(chan page, pagesAhead)
		go func() {
			defer close(pages)
			var p page
			send := func() bool {
				select {
				case pages <- p:
					p = page{}
					return true
				case <-ctx.Done():
					return false
				}
			}
			for value, err := range seq {
				if err != nil {
					p.err = err
					break
				}
				if p.values == nil {
					p.values = make([]T, 0, pageSize)
				}
				if p.values = append(p.values, value); len(p.values) == pageSize && !send() {
					return
				}
			}
			send()
		}()
		// The sequence has ended when this has: whoever reads a store does so no more.
		defer func() {
			cancel()
			for range pages { //nolint:revive // emptied
			}
		}()
		for p := range pages {
			for _, value := range p.values {
				if !yield(value, nil) {
					return
				}
			}
			if p.err != nil {
				var none T
				yield(none, p.err)
				return
			}
		}
	}
}

// Pages that are read ahead of a join.
const (
	pageSize   = 1000
	pagesAhead = 4
)
