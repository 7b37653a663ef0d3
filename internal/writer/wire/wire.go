// Package wire is what catalogd and a catalogd-probe child say to each other
// over the child's standard input and output.
//
//	child  → hello    what it is: versions, drivers
//	parent → job      size of the file, what its collection takes, CPU limit
//	child  → read     offset and length          ┐ as often
//	parent → data     exactly those bytes        ┘ as needed
//	child  → verdict  facts, or a refusal; then it waits for the next job
//
// The child parses strangers' files and may be compromised: the parent takes
// nothing from it on trust. Frames are bounded by kind, reads by the file's size
// and by a Budget, and facts are checked by Verdict.Check. The parent ends a job
// by ending the child: there is no cancel message.
//
// The package imports catalog and go-geom only, and builds without cgo.
package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"catalogd/internal/catalog"
)

// Version of the protocol; parent and child must agree on it.
const Version = 1

// Kind is the first byte of a frame.
type Kind byte

// Kinds of frame.
const (
	KindHello   Kind = 'H'
	KindJob     Kind = 'J'
	KindRead    Kind = 'R'
	KindData    Kind = 'D'
	KindVerdict Kind = 'V'
)

// MaxRead is the longest range that one read may ask for.
const MaxRead = 1 << 20

// maxPayload bounds each kind of frame, in bytes.
var maxPayload = map[Kind]uint32{
	KindHello:   16 << 10,
	KindJob:     16 << 10,
	KindRead:    12,
	KindData:    MaxRead,
	KindVerdict: 16 << 20,
}

// Hello is the child's first frame.
type Hello struct {
	Protocol    int         `json:"protocol"`
	GDAL        string      `json:"gdal"`
	PROJ        string      `json:"proj"`
	Drivers     []string    `json:"drivers"`
	Confinement Confinement `json:"confinement"`
}

// Confinement is what of the kernel's is in force against the child itself.
type Confinement struct {
	// Landlock is the version of its interface; 0 for none: then files that its user
	// may read could be opened.
	Landlock int `json:"landlock"`
	// Seccomp tells whether system calls are filtered.
	Seccomp bool `json:"seccomp"`
}

func (c Confinement) String() string {
	landlock, seccomp := "no Landlock", "no seccomp"
	if c.Landlock > 0 {
		landlock = fmt.Sprintf("Landlock %d", c.Landlock)
	}
	if c.Seccomp {
		seccomp = "seccomp"
	}
	return landlock + ", " + seccomp
}

// Job is one file to look at.
type Job struct {
	// Size of the file in bytes.
	Size    int64                `json:"size"`
	Request catalog.ProbeRequest `json:"request"`
	// CPUSeconds that the child may spend on it before it ends itself.
	CPUSeconds int `json:"cpu_seconds"`
}

var errTooLong = errors.New("frame is too long")

// WriteFrame writes one frame in one call of Write: kind, length (4 bytes, big
// endian), payload.
func WriteFrame(w io.Writer, kind Kind, payload []byte) error {
	if uint64(len(payload)) > uint64(maxPayload[kind]) {
		return fmt.Errorf("%w: frame %q of %d bytes, at most %d", errTooLong, kind, len(payload), maxPayload[kind])
	}
	frame := make([]byte, 5, 5+len(payload))
	frame[0] = byte(kind)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	_, err := w.Write(append(frame, payload...))
	return err
}

// ReadFrame reads one frame, which must be one of the kinds wanted. Nothing is
// allocated for a frame that is too long.
func ReadFrame(r io.Reader, want ...Kind) (Kind, []byte, error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	kind, n := Kind(header[0]), binary.BigEndian.Uint32(header[1:])
	wanted := false
	for _, k := range want {
		wanted = wanted || k == kind
	}
	if !wanted {
		return 0, nil, fmt.Errorf("frame of kind %q is out of place", kind)
	}
	if n > maxPayload[kind] {
		return 0, nil, fmt.Errorf("frame %q of %d bytes is longer than %d", kind, n, maxPayload[kind])
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind, payload, nil
}

// WriteJSON writes v as the payload of one frame.
func WriteJSON(w io.Writer, kind Kind, v any) error {
	var payload bytes.Buffer
	enc := json.NewEncoder(&payload)
	// Tags hold XML: "\u003c" for each "<" would be six times the bytes.
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	return WriteFrame(w, kind, payload.Bytes())
}

// EncodeRead is the payload of a read: offset (8 bytes), length (4 bytes), big
// endian.
func EncodeRead(offset int64, n int) []byte {
	payload := binary.BigEndian.AppendUint64(nil, uint64(offset))
	return binary.BigEndian.AppendUint32(payload, uint32(n))
}

// DecodeRead is the inverse of EncodeRead. It refuses what does not lie within
// a file of size bytes.
func DecodeRead(payload []byte, size int64) (offset int64, n int, err error) {
	if len(payload) != 12 {
		return 0, 0, fmt.Errorf("a read of %d bytes' length, not 12", len(payload))
	}
	off, length := binary.BigEndian.Uint64(payload), binary.BigEndian.Uint32(payload[8:])
	if length == 0 || length > MaxRead || off > uint64(size) || uint64(length) > uint64(size)-off {
		return 0, 0, fmt.Errorf("a read of %d bytes at %d, in a file of %d", length, off, size)
	}
	return int64(off), int(length), nil
}

// Budget bounds what one job may read. Each read may be a request to an object
// store, so that both number and bytes count. A decode reads everything once;
// the page walk and GDAL each read the page directories; the rest is slack for
// directories that the child's cache had to drop.
type Budget struct {
	Reads int64
	Bytes int64
}

// NewBudget for a file of size bytes.
func NewBudget(size int64) Budget {
	const most = 1 << 61
	return Budget{
		Reads: 256 + 4*(size/blockSize+1),
		Bytes: 64<<20 + 4*min(size, most/4),
	}
}

// Spend takes one read of n bytes; false if the budget does not hold it.
func (b *Budget) Spend(n int) bool {
	b.Reads--
	b.Bytes -= int64(n)
	return b.Reads >= 0 && b.Bytes >= 0
}
