package wire

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// blockSize is the unit that a Source reads and keeps; cacheBlocks how many it
// keeps (4 MiB). A whole COG header, and GDAL's second look at it, is one read.
const (
	blockSize   = 64 << 10
	cacheBlocks = 64
)

// ErrBudget: the file makes its reader ask for more than its Budget.
var ErrBudget = errors.New("reading this file takes more reads than any sound file of its size")

// Source is a file seen through ranged reads: an io.ReaderAt with a small cache
// of blocks, that fetches neighbouring blocks in one read. It is safe for
// concurrent use.
type Source struct {
	size  int64
	fetch func(offset int64, p []byte) error

	mu     sync.Mutex
	budget Budget
	blocks map[int64]*block
	clock  int64
	err    error
}

type block struct {
	data []byte
	used int64
}

// NewSource reads a file of size bytes with fetch, which fills p or fails. The
// first failure is kept, and is the answer to every later read.
func NewSource(size int64, fetch func(offset int64, p []byte) error) *Source {
	return &Source{size: size, fetch: fetch, budget: NewBudget(size), blocks: make(map[int64]*block)}
}

// Size of the file.
func (s *Source) Size() int64 { return s.size }

// Err is the first failed read, nil if there was none.
func (s *Source) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// ReadAt is io.ReaderAt: fewer bytes than asked for only with io.EOF at the end.
func (s *Source) ReadAt(p []byte, off int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if off < 0 {
		return 0, fmt.Errorf("read at negative offset %d", off)
	}
	done := 0
	for done < len(p) && off < s.size {
		data, err := s.block(off/blockSize, off+int64(len(p)-done))
		if err != nil {
			return done, err
		}
		n := copy(p[done:], data[off%blockSize:])
		done += n
		off += int64(n)
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}

// block gives block i, fetching it, and those after it that a read up to end
// will want and that are not kept, if need be.
func (s *Source) block(i, end int64) ([]byte, error) {
	s.clock++
	if b, ok := s.blocks[i]; ok {
		b.used = s.clock
		return b.data, nil
	}
	if s.err != nil {
		return nil, s.err
	}
	last := i
	for last+1-i < MaxRead/blockSize && (last+1)*blockSize < min(end, s.size) {
		if _, kept := s.blocks[last+1]; kept {
			break
		}
		last++
	}
	buf := make([]byte, min((last+1)*blockSize, s.size)-i*blockSize)
	if !s.budget.Spend(len(buf)) {
		s.err = ErrBudget
		return nil, s.err
	}
	if err := s.fetch(i*blockSize, buf); err != nil {
		s.err = fmt.Errorf("read %d bytes at %d: %w", len(buf), i*blockSize, err)
		return nil, s.err
	}
	for j := last; j >= i; j-- {
		s.evict()
		data := buf[(j-i)*blockSize : min((j+1-i)*blockSize, int64(len(buf)))]
		s.blocks[j] = &block{data: append([]byte(nil), data...), used: s.clock}
	}
	return s.blocks[i].data, nil
}

// evict makes room for one block by dropping the one unused for longest.
func (s *Source) evict() {
	if len(s.blocks) < cacheBlocks {
		return
	}
	oldest := int64(-1)
	for i, b := range s.blocks {
		if oldest < 0 || b.used < s.blocks[oldest].used {
			oldest = i
		}
	}
	delete(s.blocks, oldest)
}
