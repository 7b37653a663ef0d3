// Package disksort sorts more records than memory may hold, bytewise. It imports the
// standard library only.
//
// Records gather in memory. Each time that is full they are sorted and written to a
// temporary file, as a run; in the end the runs are merged. The file has no name, so
// that nothing is left of it when the process ends, however it ends.
package disksort

import (
	"bufio"
	"bytes"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"syscall"
)

// Sorter takes records, and then gives them in order. It is for one goroutine, and must
// be closed.
type Sorter struct {
	dir    string
	memory int

	text    []byte // the records in memory, one after another
	records []span
	out     *runs // on disk; nil until memory is full
	err     error // the first; it stays
}

// span is a piece of Sorter.text.
type span struct{ at, end int }

// runs are sorted runs, one after another in a file.
type runs struct {
	file *os.File
	ends []int64 // where each run ends
}

// runBuffer is what reading one run holds.
const runBuffer = 8 << 10

// New makes a sorter that holds about memory bytes at once, and one record more. Its
// files are in dir; "" is the system's directory for temporary ones.
func New(dir string, memory int) *Sorter {
	if dir == "" {
		dir = os.TempDir()
	}
	return &Sorter{dir: dir, memory: memory}
}

// Add adds a copy of record. No space on the disk is ENOSPC. After an error no record
// is taken, and Sorted gives that error.
func (s *Sorter) Add(record []byte) error {
	const entry = 16 // of records
	// Half of memory is left for what grows.
	if len(s.records) > 0 && len(s.text)+len(record)+entry*(len(s.records)+1) > s.memory/2 {
		s.spill()
	}
	if s.err != nil {
		return s.err
	}
	at := len(s.text)
	s.text = append(s.text, record...)
	s.records = append(s.records, span{at, len(s.text)})
	return nil
}

// Sorted yields the records in order, the equal ones too; a record is valid until the
// next one. An error comes last. It can be read once, and not to its end if need be.
func (s *Sorter) Sorted() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		err := s.sorted(func(record []byte) error {
			if !yield(record, nil) {
				return errStopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// Close frees memory and disk; nothing can be added or read after it. Closing again is
// no error.
func (s *Sorter) Close() error {
	s.text, s.records = nil, nil
	s.fail(errClosed)
	if s.out == nil {
		return nil
	}
	err := s.out.file.Close()
	s.out = nil
	return err
}

var (
	errStopped = errors.New("stopped")
	errClosed  = errors.New("sorting on disk: the sorter is closed")
	errRead    = errors.New("sorting on disk: the records have been read")
)

func (s *Sorter) sorted(yield func([]byte) error) error {
	if s.err == nil && s.out != nil {
		s.spill()
		s.text, s.records = nil, nil
		s.mergePasses()
	}
	if s.err != nil {
		return s.err
	}
	s.err = errRead
	if s.out != nil {
		return s.merge(*s.out, 0, len(s.out.ends), yield)
	}
	s.sort()
	for _, r := range s.records {
		if err := yield(s.text[r.at:r.end:r.end]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sorter) sort() {
	slices.SortFunc(s.records, func(a, b span) int {
		return bytes.Compare(s.text[a.at:a.end], s.text[b.at:b.end])
	})
}

// spill writes the records in memory as a run.
func (s *Sorter) spill() {
	if s.err != nil || len(s.records) == 0 {
		return
	}
	if s.out == nil {
		if s.out = s.create(); s.err != nil {
			return
		}
	}
	s.sort()
	s.write(s.out, func(yield func([]byte) error) error {
		for _, r := range s.records {
			if err := yield(s.text[r.at:r.end]); err != nil {
				return err
			}
		}
		return nil
	})
	s.text, s.records = s.text[:0], s.records[:0]
}

// mergePasses merges neighbouring runs until so few are left that their buffers fit in
// memory. Each pass needs the disk space once more.
func (s *Sorter) mergePasses() {
	most := max(s.memory/2/runBuffer, 2)
	for s.err == nil && len(s.out.ends) > most {
		to := s.create()
		for i := 0; i < len(s.out.ends) && s.err == nil; i += most {
			s.write(to, func(yield func([]byte) error) error {
				return s.merge(*s.out, i, min(i+most, len(s.out.ends)), yield)
			})
		}
		if to != nil {
			s.out.file.Close()
			s.out = to
		}
	}
}

// create makes the file of runs; nil on an error.
func (s *Sorter) create() *runs {
	file, err := os.CreateTemp(s.dir, "catalogd-sort-*")
	if err != nil {
		s.fail(err)
		return nil
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		s.fail(err)
		return nil
	}
	return &runs{file: file}
}

// write appends a run: each record after its length.
func (s *Sorter) write(to *runs, records func(yield func([]byte) error) error) {
	end := to.start(len(to.ends))
	w := bufio.NewWriterSize(io.NewOffsetWriter(to.file, end), 8*runBuffer)
	var length [binary.MaxVarintLen64]byte
	err := records(func(record []byte) error {
		n := binary.PutUvarint(length[:], uint64(len(record)))
		end += int64(n + len(record))
		_, _ = w.Write(length[:n]) // the next Write gives its error too
		_, err := w.Write(record)
		return err
	})
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		s.fail(err)
		return
	}
	to.ends = append(to.ends, end)
}

// merge yields the records of the runs from first on and before last, in order.
func (s *Sorter) merge(from runs, first, last int, yield func([]byte) error) error {
	var heads queue
	for i := first; i < last; i++ {
		start := from.start(i)
		h := &head{left: from.ends[i] - start}
		h.r = bufio.NewReaderSize(io.NewSectionReader(from.file, start, h.left), runBuffer)
		if err := h.next(); err != nil { // no run is empty
			return s.explain(err)
		}
		heads = append(heads, h)
	}
	heap.Init(&heads)
	for len(heads) > 0 {
		if err := yield(heads[0].record); err != nil {
			return err
		}
		if heads[0].left == 0 {
			heap.Pop(&heads)
			continue
		}
		if err := heads[0].next(); err != nil {
			return s.explain(err)
		}
		heap.Fix(&heads, 0)
	}
	return nil
}

// start is where a run begins.
func (r *runs) start(i int) int64 {
	if i == 0 {
		return 0
	}
	return r.ends[i-1]
}

// head is the first record of a run that has not been merged.
type head struct {
	r      *bufio.Reader
	left   int64 // bytes of the run after record
	record []byte
}

// next reads the next record, of which there is one.
func (h *head) next() error {
	length, err := binary.ReadUvarint(h.r)
	if err != nil {
		return cut(err)
	}
	h.record = slices.Grow(h.record[:0], int(length))[:length]
	if _, err := io.ReadFull(h.r, h.record); err != nil {
		return cut(err)
	}
	var prefix [binary.MaxVarintLen64]byte
	h.left -= int64(binary.PutUvarint(prefix[:], length)) + int64(length)
	return nil
}

// cut is err; the end of the file is not expected.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// queue is a heap of runs by their first records.
type queue []*head

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return bytes.Compare(q[i].record, q[j].record) < 0 }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(*head)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	h := (*q)[last]
	*q = (*q)[:last]
	return h
}

// fail keeps the first error.
func (s *Sorter) fail(err error) {
	if s.err == nil {
		s.err = s.explain(err)
	}
}

func (s *Sorter) explain(err error) error {
	switch {
	case errors.Is(err, errClosed):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("sorting on disk: %w: make room in %s, or set TMPDIR to another directory", err, s.dir)
	}
	return fmt.Errorf("sorting on disk in %s: %w", s.dir, err)
}
