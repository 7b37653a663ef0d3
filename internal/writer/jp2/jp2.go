// Package jp2 proves JPEG 2000 files complete: each box lies within the file, the last
// ends where the file does, and the codestream has every part of every tile, and its
// end marker where its box ends. It decodes nothing.
//
// What it does not prove: that the packets of a tile-part are those that the encoder
// meant; decoding sees some damage of theirs. To a decoder, zeros are packets of no
// content: Holes looks for more of them than there can be packets.
//
// The files are strangers': counts are bounded. Pure Go; imports package proof.
//
// Source: ISO/IEC 15444-1 (ITU-T T.800), annexes A and I.
package jp2

import (
	"encoding/binary"
	"errors"
	"io"

	"catalogd/internal/writer/proof"
)

// ErrNotJP2: the file does not begin like a JP2.
var ErrNotJP2 = errors.New("no JP2 signature")

// Report is what the walk found: tiles, and those of them that are missing parts.
type Report struct {
	Tiles, Missing uint64
}

const (
	signature = "\x00\x00\x00\x0cjP  \r\n\x87\n"
	maxBoxes  = 10000
	maxTiles  = 65535 // all that a tile-part's header can name

	markerSOC = 0xff4f
	markerSIZ = 0xff51
	markerCOD = 0xff52
	markerCOC = 0xff53
	markerSOD = 0xff93
	markerSOT = 0xff90
	markerEOC = 0xffd9
)

type walker struct {
	r    io.ReaderAt
	size int64
	// holes are looked for where packets, how many a tile may have, is not 0.
	holes   bool
	packets uint64
	// components, and size of a tile.
	components, width, height uint64
}

// Prove walks the file of size bytes. The error is ErrNotJP2, a
// *proof.TruncatedError, a *proof.MalformedError, or what r answered.
func Prove(r io.ReaderAt, size int64) (Report, error) {
	return (&walker{r: r, size: size}).prove()
}

// Holes reads the whole of a file that Prove has passed, and refuses it if a tile-part
// has a run of zeros that no encoder writes: the place of a part that never reached the
// disk. Errors are those of Prove.
func Holes(r io.ReaderAt, size int64) error {
	_, err := (&walker{r: r, size: size, holes: true}).prove()
	return err
}

func (w *walker) prove() (Report, error) {
	r, size := w.r, w.size
	if size < int64(len(signature)) {
		return Report{}, ErrNotJP2
	}
	head, err := proof.Read(r, 0, int64(len(signature)))
	if err != nil {
		return Report{}, err
	}
	if string(head) != signature {
		return Report{}, ErrNotJP2
	}
	var report *Report
	haveHeader := false
	at := int64(len(signature))
	for boxes := 0; at < size; boxes++ {
		if boxes == maxBoxes {
			return Report{}, proof.Malformed("more than %d boxes", maxBoxes)
		}
		kind, body, end, err := w.box(at)
		if err != nil {
			return Report{}, err
		}
		switch kind {
		case "jp2h":
			haveHeader = true
		case "jp2c":
			if report != nil {
				return Report{}, proof.Malformed("there are two codestreams")
			}
			found, err := w.codestream(body, end)
			if err != nil {
				return Report{}, err
			}
			report = &found
		}
		at = end
	}
	if report == nil || !haveHeader {
		return Report{}, proof.Truncated("there is no image yet: the file ends after %d bytes of boxes", size)
	}
	return *report, nil
}

// box reads the head of the box at an offset.
func (w *walker) box(at int64) (kind string, body, end int64, err error) {
	if w.size-at < 8 {
		return "", 0, 0, proof.Truncated("a box is cut off at %d; the file has %d bytes", at, w.size)
	}
	p, err := proof.Read(w.r, at, min(16, w.size-at))
	if err != nil {
		return "", 0, 0, err
	}
	kind, body = string(p[4:8]), at+8
	length := uint64(binary.BigEndian.Uint32(p))
	switch length {
	case 0: // to the end of the file
		return kind, body, w.size, nil
	case 1:
		if len(p) < 16 {
			return "", 0, 0, proof.Truncated("a box is cut off at %d; the file has %d bytes", at, w.size)
		}
		length, body = binary.BigEndian.Uint64(p[8:]), at+16
	}
	switch {
	case length < uint64(body-at):
		return "", 0, 0, proof.Malformed("the box %.4q at %d is %d bytes long", kind, at, length)
	case length > uint64(w.size-at):
		return "", 0, 0, proof.Truncated("the box %.4q at %d should be %d bytes long; the file has %d", kind, at, length, w.size)
	}
	return kind, body, at + int64(length), nil
}

// codestream walks from one tile-part to the next.
func (w *walker) codestream(at, end int64) (Report, error) {
	cut := func() error {
		return proof.Truncated("the codestream is cut off at %d: its end marker is missing", at)
	}
	read := func(n int64) ([]byte, error) {
		if end-at < n {
			return nil, cut()
		}
		return proof.Read(w.r, at, n)
	}
	p, err := read(2)
	if err != nil {
		return Report{}, err
	}
	if binary.BigEndian.Uint16(p) != markerSOC {
		return Report{}, proof.Malformed("the codestream does not begin with its marker")
	}
	at += 2
	var tiles []tile
	for first := true; ; first = false {
		if p, err = read(2); err != nil {
			return Report{}, err
		}
		marker := binary.BigEndian.Uint16(p)
		if first && marker != markerSIZ {
			return Report{}, proof.Malformed("the codestream does not say its size first")
		}
		switch marker {
		case markerEOC:
			if at+2 != end {
				return Report{}, proof.Malformed("%d bytes follow the end of the codestream", end-at-2)
			}
			report := Report{Tiles: uint64(len(tiles))}
			for _, t := range tiles {
				if !t.whole() {
					report.Missing++
				}
			}
			return report, nil
		case markerSOT:
			if p, err = read(12); err != nil {
				return Report{}, err
			}
			index, length := int(binary.BigEndian.Uint16(p[4:])), int64(binary.BigEndian.Uint32(p[6:]))
			if index >= len(tiles) {
				return Report{}, proof.Malformed("there is a part of tile %d, of %d", index, len(tiles))
			}
			tiles[index].parts++
			tiles[index].of = max(tiles[index].of, int(p[11]))
			if length == 0 { // up to the end marker
				length = end - at - 2
			}
			if length < 14 || length > end-at {
				return Report{}, proof.Truncated("a part of tile %d should be %d bytes long at %d; the codestream ends at %d", index, length, at, end)
			}
			if w.holes && w.packets > 0 {
				if err := w.part(at, at+length); err != nil {
					return Report{}, err
				}
			}
			at += length
		default:
			if p, err = read(4); err != nil {
				return Report{}, err
			}
			length := int64(binary.BigEndian.Uint16(p[2:]))
			if marker>>8 != 0xff || length < 2 {
				return Report{}, proof.Truncated("at %d there is no marker, but %#04x: what should be there was never written", at, marker)
			}
			if marker == markerSIZ {
				if p, err = read(40); err != nil {
					return Report{}, err
				}
				if tiles, err = grid(p[6:]); err != nil {
					return Report{}, err
				}
				w.components = uint64(binary.BigEndian.Uint16(p[38:]))
				w.width, w.height = uint64(binary.BigEndian.Uint32(p[22:])), uint64(binary.BigEndian.Uint32(p[26:]))
			}
			switch {
			case w.holes && marker == markerCOD:
				if p, err = read(2 + length); err != nil {
					return Report{}, err
				}
				w.packets = w.most(p[4:])
			case marker == markerCOC: // components differ
				w.holes = false
			}
			at += 2 + length
		}
	}
}

// most is how many packets a tile has at the most, by a COD segment from Scod on; 0 if
// that cannot be told. Annexes A.6.1 and B.6.
func (w *walker) most(cod []byte) uint64 {
	if len(cod) < 10 || cod[5] > 32 {
		return 0
	}
	if cod[8] != 0 {
		return 0 // a style of code-blocks: some write zeros in a row
	}
	layers, levels := uint64(binary.BigEndian.Uint16(cod[2:])), int(cod[5])
	var precincts uint64
	for level := range levels + 1 {
		x, y := byte(15), byte(15)
		if cod[0]&1 == 1 {
			if len(cod) <= 10+level {
				return 0
			}
			x, y = cod[10+level]&15, cod[10+level]>>4
		}
		// A tile may begin within a precinct, and end within one.
		width, height := w.width>>(levels-level)+1, w.height>>(levels-level)+1
		precincts += (width>>x + 2) * (height>>y + 2)
		if precincts > 1<<30 {
			return 0
		}
	}
	return layers * w.components * precincts
}

// part looks for a hole in a tile-part. Its header may say otherwise than the main one how
// many packets there are; then nothing is looked for.
func (w *walker) part(at, end int64) error {
	at += 12
	for {
		if end-at < 2 {
			return nil
		}
		p, err := proof.Read(w.r, at, min(4, end-at))
		if err != nil {
			return err
		}
		switch marker := binary.BigEndian.Uint16(p); {
		case marker == markerSOD:
			return w.zeros(at+2, end)
		case len(p) < 4 || marker == markerCOD || marker == markerCOC:
			return nil
		}
		at += 2 + int64(binary.BigEndian.Uint16(p[2:]))
	}
}

// zeros refuses more of them in a row than a tile has packets, each of which is one zero
// if it is empty. In a packet's content 256 in a row do not come about by chance.
func (w *walker) zeros(at, end int64) error {
	const chunk = 64 << 10
	run := uint64(0)
	for at < end {
		p, err := proof.Read(w.r, at, min(chunk-at%chunk, end-at))
		if err != nil {
			return err
		}
		at += int64(len(p))
		for i, c := range p {
			if c != 0 {
				run = 0
			} else if run++; run > w.packets+256 {
				return proof.Truncated("zeros stand where a part of a tile should be, up to %d and further: it was never written, or written over", at-int64(len(p)-i))
			}
		}
	}
	return nil
}

// tile counts its parts; of is how many there should be, 0 if nobody says.
type tile struct{ parts, of int }

func (t tile) whole() bool { return t.parts > 0 && t.parts >= t.of }

// grid makes the tiles that a SIZ segment speaks of, from Xsiz on.
func grid(p []byte) ([]tile, error) {
	var v [8]uint64 // Xsiz, Ysiz, XOsiz, YOsiz, XTsiz, YTsiz, XTOsiz, YTOsiz
	for i := range v {
		v[i] = uint64(binary.BigEndian.Uint32(p[4*i:]))
	}
	if v[4] == 0 || v[5] == 0 || v[0] <= v[2] || v[1] <= v[3] || v[6] > v[2] || v[7] > v[3] {
		return nil, proof.Malformed("the image is %d × %d in tiles of %d × %d", v[0], v[1], v[4], v[5])
	}
	across, down := (v[0]-v[6]+v[4]-1)/v[4], (v[1]-v[7]+v[5]-1)/v[5]
	if across > maxTiles || down > maxTiles || across*down > maxTiles {
		return nil, proof.Malformed("the image has %d × %d tiles", across, down)
	}
	return make([]tile, across*down), nil
}
