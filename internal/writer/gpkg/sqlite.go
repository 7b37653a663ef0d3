package gpkg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
	"strings"

	"catalogd/internal/writer/proof"
)

// ErrNotSQLite: the file does not begin like an SQLite database.
var ErrNotSQLite = errors.New("no SQLite header")

const (
	headerBytes = 100
	// maxDepth is SQLite's own limit of a b-tree.
	maxDepth = 20
	// maxSchema objects, and maxPayload bytes of a row that is decoded.
	maxSchema  = 100_000
	maxPayload = 1 << 20
	// lockOffset is the byte of the page that SQLite never uses.
	lockOffset = 1 << 30
)

// database is an SQLite file whose pages are walked, each once.
type database struct {
	r        io.ReaderAt
	pageSize int64
	usable   int64 // of each page
	pages    uint32
	appID    uint32
	// used pages, by number.
	used []uint64
	seen uint32
}

// object is a row of the schema.
type object struct {
	kind, name, sql string
	root            uint32
}

// table tells whether it holds rows of its own: SQLite goes by what created it, whatever
// kind the schema says.
func (o object) table() bool {
	return o.kind == "table" && o.root != 0 && strings.HasPrefix(o.sql, "CREATE TABLE ")
}

// open reads the header.
func open(r io.ReaderAt, size int64) (*database, error) {
	if size < headerBytes {
		return nil, ErrNotSQLite
	}
	h, err := proof.Read(r, 0, headerBytes)
	if err != nil {
		return nil, err
	}
	if string(h[:16]) != "SQLite format 3\x00" {
		return nil, ErrNotSQLite
	}
	be := binary.BigEndian
	d := &database{r: r, pageSize: int64(be.Uint16(h[16:])), pages: be.Uint32(h[28:]), appID: be.Uint32(h[68:])}
	if d.pageSize == 1 {
		d.pageSize = 65536
	}
	d.usable = d.pageSize - int64(h[20])
	switch {
	case d.pageSize < 512 || d.pageSize&(d.pageSize-1) != 0 || d.usable < 480:
		return nil, proof.Malformed("pages have %d bytes, of which %d are usable", d.pageSize, d.usable)
	case h[18] == 2 || h[19] == 2:
		return nil, &proof.DependentError{What: "the database is in WAL mode, so that a part of it may be in a -wal file beside it: close it with PRAGMA journal_mode=DELETE"}
	case h[18] != 1 || h[19] != 1 || h[21] != 64 || h[22] != 32 || h[23] != 32:
		return nil, proof.Malformed("the database is of a version that is not known")
	case be.Uint32(h[24:]) != be.Uint32(h[92:]):
		return nil, proof.Truncated("the database was changed by a writer that did not keep its header (change counter %d, header of %d)", be.Uint32(h[24:]), be.Uint32(h[92:]))
	case int64(d.pages)*d.pageSize != size:
		return nil, proof.Truncated("%d pages of %d bytes are %d bytes; the file has %d", d.pages, d.pageSize, int64(d.pages)*d.pageSize, size)
	case be.Uint32(h[56:]) != 1:
		return nil, proof.Malformed("text is not in UTF-8 (encoding %d)", be.Uint32(h[56:]))
	}
	d.used = make([]uint64, d.pages/64+1)
	if lock := lockOffset/d.pageSize + 1; lock <= int64(d.pages) {
		_ = d.use(uint32(lock)) // the first
	}
	if be.Uint32(h[52:]) != 0 {
		// Pages of pointers, for vacuuming.
		for n := int64(2); n <= int64(d.pages); n += d.usable/5 + 1 {
			if n == lockOffset/d.pageSize+1 {
				n++
			}
			if err := d.use(uint32(n)); err != nil {
				return nil, err
			}
		}
	}
	return d, d.freelist(be.Uint32(h[32:]), be.Uint32(h[36:]))
}

// use marks a page as used, which it may be once.
func (d *database) use(page uint32) error {
	if page == 0 || page > d.pages {
		return proof.Truncated("page %d is spoken of; the database has %d", page, d.pages)
	}
	word, bit := &d.used[page/64], uint64(1)<<(page%64)
	if *word&bit != 0 {
		return proof.Malformed("page %d has two uses", page)
	}
	*word |= bit
	d.seen++
	return nil
}

// allUsed refuses a database with pages that nothing leads to.
func (d *database) allUsed() error {
	if d.seen != d.pages {
		return proof.Malformed("%d of %d pages are neither used nor free: a transaction was cut off", d.pages-d.seen, d.pages)
	}
	return nil
}

func (d *database) page(n uint32) ([]byte, error) {
	return proof.Read(d.r, int64(n-1)*d.pageSize, d.pageSize)
}

func (d *database) freelist(trunk, want uint32) error {
	var count uint32
	for trunk != 0 {
		if err := d.use(trunk); err != nil {
			return err
		}
		p, err := d.page(trunk)
		if err != nil {
			return err
		}
		leaves := binary.BigEndian.Uint32(p[4:])
		if int64(leaves) > d.usable/4-2 {
			return proof.Malformed("the list of free pages says %d in one page", leaves)
		}
		for i := range leaves {
			if err := d.use(binary.BigEndian.Uint32(p[8+4*i:])); err != nil {
				return err
			}
		}
		count += 1 + leaves
		trunk = binary.BigEndian.Uint32(p)
	}
	if count != want {
		return proof.Malformed("%d pages are free; the header says %d", count, want)
	}
	return nil
}

// tree walks the b-tree below a page and counts its rows or entries. row, if there
// is one, gets what each row of a table begins with: all of it up to need bytes.
func (d *database) tree(page uint32, depth int, need int64, row func(payload []byte) error) (rows uint64, err error) {
	if depth > maxDepth {
		return 0, proof.Malformed("a b-tree is deeper than %d pages", maxDepth)
	}
	if err := d.use(page); err != nil {
		return 0, err
	}
	p, err := d.page(page)
	if err != nil {
		return 0, err
	}
	p = p[:d.usable]
	at := 0
	if page == 1 {
		at = headerBytes
	}
	const indexInterior, tableInterior, indexLeaf, tableLeaf = 2, 5, 10, 13
	kind, cells, pointers := p[at], int(binary.BigEndian.Uint16(p[at+3:])), at+8
	interior := kind == indexInterior || kind == tableInterior
	var children []uint32
	switch {
	case interior:
		children, pointers = append(children, binary.BigEndian.Uint32(p[at+8:])), at+12
	case kind != indexLeaf && kind != tableLeaf:
		return 0, proof.Truncated("page %d should be a part of a b-tree and was never written (kind %d)", page, kind)
	}
	if pointers+2*cells > len(p) {
		return 0, proof.Malformed("page %d has %d cells", page, cells)
	}
	for i := range cells {
		c := cell{p: p, at: int(binary.BigEndian.Uint16(p[pointers+2*i:]))}
		if c.at < pointers+2*cells {
			return 0, proof.Malformed("cell %d of page %d overlaps its table", i, page)
		}
		if interior {
			children = append(children, c.u32())
		}
		var size uint64
		if kind != tableInterior {
			size = c.varint()
		}
		if kind == tableLeaf || kind == tableInterior {
			c.varint() // the row's number
		}
		if kind != tableInterior {
			payload, err := d.payload(&c, size, kind == tableLeaf, need)
			if err != nil {
				return 0, err
			}
			if rows++; row != nil && kind == tableLeaf && !c.bad {
				if err := row(payload); err != nil {
					return 0, err
				}
			}
		}
		if c.bad {
			return 0, proof.Malformed("cell %d of page %d does not fit it", i, page)
		}
	}
	// In the order of the file, so that it is read forwards.
	slices.Sort(children)
	for _, child := range children {
		n, err := d.tree(child, depth+1, need, row)
		if err != nil {
			return 0, err
		}
		rows += n
	}
	return rows, nil
}

// cell is read from front to back; bad once it left its page.
type cell struct {
	p   []byte
	at  int
	bad bool
}

func (c *cell) take(n int) []byte {
	if c.bad = c.bad || n < 0 || n > len(c.p)-c.at; c.bad {
		return make([]byte, 9)
	}
	c.at += n
	return c.p[c.at-n : c.at]
}

func (c *cell) u32() uint32 { return binary.BigEndian.Uint32(c.take(4)) }

func (c *cell) varint() (v uint64) {
	for i := range 9 {
		b := c.take(1)[0]
		if i == 8 {
			return v<<8 | uint64(b)
		}
		v = v<<7 | uint64(b&0x7f)
		if b < 0x80 {
			break
		}
	}
	return v
}

// payload passes over a cell's payload of size bytes, with the pages that it goes on
// in, and gives what it begins with: all of it up to need bytes, or more.
func (d *database) payload(c *cell, size uint64, table bool, need int64) ([]byte, error) {
	if size > math.MaxInt32 {
		c.bad = true
		return nil, nil
	}
	// fileformat2.html, "B-tree Cell Format".
	u, p := d.usable, int64(size)
	most, least := u-35, (u-12)*32/255-23
	if !table {
		most = (u-12)*64/255 - 23
	}
	local := p
	if p > most {
		if local = least + (p-least)%(u-4); local > most {
			local = least
		}
	}
	out := c.take(int(local))
	if local == p || c.bad {
		return out, nil
	}
	next := c.u32()
	out = slices.Clone(out)
	for left := p - local; left > 0 && !c.bad; left -= u - 4 {
		if err := d.use(next); err != nil {
			return nil, err
		}
		// The chain alone is four bytes a page; a page that is wanted is read whole.
		n := int64(4)
		if int64(len(out)) < need {
			n += min(left, u-4)
		}
		page, err := proof.Read(d.r, int64(next-1)*d.pageSize, n)
		if err != nil {
			return nil, err
		}
		out = append(out, page[4:]...)
		next = binary.BigEndian.Uint32(page)
	}
	if next != 0 && !c.bad {
		return nil, proof.Malformed("a row of %d bytes goes on past its end, in page %d", p, next)
	}
	return out, nil
}

// schema reads the tables, indexes, views and triggers.
func (d *database) schema() ([]object, error) {
	var all []object
	_, err := d.tree(1, 0, maxPayload, func(payload []byte) error {
		if len(all) == maxSchema {
			return proof.Malformed("more than %d tables and indexes", maxSchema)
		}
		v := record(payload)
		if len(v) < 5 {
			return proof.Malformed("a row of the schema has %d columns", len(v))
		}
		root := v[3].integer()
		if root < 0 || root > math.MaxUint32 {
			return proof.Malformed("a table begins in page %d", root)
		}
		all = append(all, object{kind: v[0].text(), name: v[1].text(), root: uint32(root), sql: v[4].text()})
		return nil
	})
	return all, err
}

// value of a column: nil, int64, float64 or []byte, which texts are too.
type value struct{ v any }

func (v value) null() bool { return v.v == nil }

// text ends where C's does.
func (v value) text() string {
	b, _ := v.v.([]byte)
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

func (v value) integer() int64 {
	switch n := v.v.(type) {
	case int64:
		return n
	case float64:
		if math.Abs(n) < 1<<53 {
			return int64(n)
		}
	}
	return 0
}

func (v value) float() float64 {
	switch n := v.v.(type) {
	case int64:
		return float64(n)
	case float64:
		return n
	}
	return math.NaN()
}

// record decodes the columns of a row, as far as its bytes go.
func record(payload []byte) []value {
	out, _ := decode(payload)
	return out
}

// beginning is a record with what there is of the first column that is cut off, if that
// is a text or a blob.
func beginning(payload []byte) []value {
	out, part := decode(payload)
	if part != nil {
		out = append(out, value{part})
	}
	return out
}

func decode(payload []byte) (out []value, part []byte) {
	head := cell{p: payload}
	length := head.varint()
	if head.bad || length > uint64(len(payload)) {
		return nil, nil
	}
	body := cell{p: payload, at: int(length)}
	head.p = payload[:length]
	for head.at < len(head.p) {
		kind := head.varint()
		var v any
		switch {
		case kind == 0:
		case kind <= 6:
			b := body.take([]int{0, 1, 2, 3, 4, 6, 8}[kind])
			var n int64
			if len(b) > 0 && b[0] >= 0x80 {
				n = -1
			}
			for _, c := range b {
				n = n<<8 | int64(c)
			}
			v = n
		case kind == 7:
			v = math.Float64frombits(binary.BigEndian.Uint64(body.take(8)))
		case kind == 8 || kind == 9:
			v = int64(kind - 8)
		case kind >= 12 && kind < math.MaxInt32:
			n := int(kind-12) / 2
			if left := payload[body.at:]; n > len(left) && !body.bad {
				return out, left
			}
			v = body.take(n)
		default:
			return out, nil
		}
		if head.bad || body.bad {
			return out, nil
		}
		out = append(out, value{v})
	}
	return out, nil
}

// columns reads the names of a table's columns, in lower case, from what created it.
func columns(sql string) []string {
	start := strings.IndexByte(sql, '(')
	if start < 0 {
		return nil
	}
	var names []string
	depth, begin, quote := 0, start+1, byte(0)
	for i := start; i < len(sql); i++ {
		switch c := sql[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'' || c == '`':
			quote = c
		case c == '[':
			quote = ']'
		case c == '(':
			depth++
		case c == ')':
			depth--
		}
		if end := depth == 0; end || depth == 1 && sql[i] == ',' && quote == 0 {
			names = append(names, columnName(sql[begin:i]))
			if begin = i + 1; end {
				break
			}
		}
	}
	return names
}

func columnName(definition string) string {
	s := strings.TrimSpace(definition)
	if s == "" {
		return ""
	}
	if end, quoted := map[byte]byte{'"': '"', '\'': '\'', '`': '`', '[': ']'}[s[0]]; quoted {
		name, _, _ := strings.Cut(s[1:], string(end))
		return strings.ToLower(name)
	}
	return strings.ToLower(strings.FieldsFunc(s, func(r rune) bool { return r <= ' ' || r == '(' })[0])
}
