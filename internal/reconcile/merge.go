package reconcile

import (
	"context"
	"fmt"
	"iter"

	"catalogd/internal/catalog"
)

// joiner takes what a join yields. An error ends the join.
type joiner interface {
	both(row Row, object catalog.Object) error
	onlyRow(row Row) error
	onlyObject(object catalog.Object) error
}

// join merges rows and objects, both in byte order of the key, and each key once. Disorder
// on either side is an error: what was joined before it is as good as ever, what comes
// after is not known.
func join(ctx context.Context, rows iter.Seq2[Row, error], objects iter.Seq2[catalog.Object, error], to joiner) error {
	ctx, cancel := context.WithCancel(ctx)
	left := side[Row]{name: "the catalogue", key: func(r *Row) string { return r.ObjectKey }, pages: ahead(ctx, rows)}
	right := side[catalog.Object]{name: "the listing", key: func(o *catalog.Object) string { return o.Key }, pages: ahead(ctx, objects)}
	defer func() {
		cancel()
		left.drain()
		right.drain()
	}()
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
			if err = to.onlyRow(left.value()); err == nil {
				err = left.advance()
			}
		case left.over || right.at < left.at:
			if err = to.onlyObject(right.value()); err == nil {
				err = right.advance()
			}
		default:
			if err = to.both(left.value(), right.value()); err == nil {
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
	pages <-chan page[T]
	page  page[T]
	next  int // of the page
	at    string
	begun bool
	over  bool
}

// value is the one that the side stands at.
func (s *side[T]) value() T { return s.page.values[s.next-1] }

func (s *side[T]) advance() error {
	for s.next == len(s.page.values) {
		if s.page.err != nil {
			return s.page.err
		}
		page, more := <-s.pages
		if !more {
			s.over = true
			return nil
		}
		s.page, s.next = page, 0
	}
	s.next++
	key := s.key(&s.page.values[s.next-1])
	if s.begun && key <= s.at {
		if key == s.at {
			return fmt.Errorf("%s has %q twice", s.name, key)
		}
		return fmt.Errorf("%s has %q after %q: it is not in byte order", s.name, key, s.at)
	}
	s.at, s.begun = key, true
	return nil
}

// drain waits until nothing is read any more.
func (s *side[T]) drain() {
	for range s.pages { //nolint:revive // emptied
	}
}

// page is a piece of a sequence; err comes after its values.
type page[T any] struct {
	values []T
	err    error
}

// Pages that are read ahead of a join.
const (
	pageSize   = 1000
	pagesAhead = 4
)

// ahead has a sequence read in a goroutine of its own, some pages ahead, until ctx is over:
// so both sides of a join are waited for at once. The channel is closed when the sequence
// has ended.
func ahead[T any](ctx context.Context, seq iter.Seq2[T, error]) <-chan page[T] {
	pages := make(chan page[T], pagesAhead)
	go func() {
		defer close(pages)
		var p page[T]
		send := func() bool {
			select {
			case pages <- p:
				p = page[T]{}
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
	return pages
}
