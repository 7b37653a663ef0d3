package hostile

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// Field types of TIFF.
const (
	tASCII, tShort, tLong, tDouble, tIFD, tLong8 = 2, 3, 4, 12, 13, 16
)

// page is a directory by its tags; offsets of directories and blocks are the file's.
type page map[uint16]field

type field struct {
	kind  uint16
	count uint64 // what it says; len(data) need not be as much
	data  []byte
}

func short(v ...uint16) field {
	f := field{kind: tShort, count: uint64(len(v))}
	for _, n := range v {
		f.data = binary.LittleEndian.AppendUint16(f.data, n)
	}
	return f
}

func long(v ...uint32) field {
	f := field{kind: tLong, count: uint64(len(v))}
	for _, n := range v {
		f.data = binary.LittleEndian.AppendUint32(f.data, n)
	}
	return f
}

func double(v ...float64) field {
	f := field{kind: tDouble, count: uint64(len(v))}
	for _, n := range v {
		f.data = binary.LittleEndian.AppendUint64(f.data, math.Float64bits(n))
	}
	return f
}

func ascii(s string) field {
	return field{tASCII, uint64(len(s) + 1), append([]byte(s), 0)}
}

// header is of a little-endian file, before its first directory: 16 bytes either way, the
// last 8 of which are free in a classic one.
const header = 16

// file puts data, and after it the directories, into one file. next gives where each
// leads, by its number and the offsets of all.
func file(big bool, data []byte, pages []page, next func(i int, at []uint64) uint64) []byte {
	le := binary.LittleEndian
	out := append(make([]byte, header), data...)
	var at []uint64
	links := make([]int, 0, len(pages))
	for _, p := range pages {
		inline, entry := 4, 12
		if big {
			inline, entry = 8, 20
		}
		tags := make([]uint16, 0, len(p))
		for tag := range p {
			tags = append(tags, tag)
		}
		slices.Sort(tags)
		values := map[uint16]uint64{}
		for _, tag := range tags {
			if f := p[tag]; len(f.data) > inline {
				if len(out)%2 == 1 {
					out = append(out, 0)
				}
				values[tag] = uint64(len(out))
				out = append(out, f.data...)
			}
		}
		if len(out)%2 == 1 {
			out = append(out, 0)
		}
		at = append(at, uint64(len(out)))
		if big {
			out = le.AppendUint64(out, uint64(len(tags)))
		} else {
			out = le.AppendUint16(out, uint16(len(tags)))
		}
		for _, tag := range tags {
			f := p[tag]
			e := le.AppendUint16(le.AppendUint16(make([]byte, 0, entry), tag), f.kind)
			if big {
				e = le.AppendUint64(e, f.count)
			} else {
				e = le.AppendUint32(e, uint32(f.count))
			}
			if offset, ok := values[tag]; !ok {
				e = append(append(e, f.data...), make([]byte, inline-len(f.data))...)
			} else if big {
				e = le.AppendUint64(e, offset)
			} else {
				e = le.AppendUint32(e, uint32(offset))
			}
			out = append(out, e...)
		}
		links = append(links, len(out))
		out = append(out, make([]byte, inline)...)
	}
	for i, link := range links {
		if to := next(i, at); big {
			le.PutUint64(out[link:], to)
		} else {
			le.PutUint32(out[link:], uint32(to))
		}
	}
	if big {
		copy(out, "II+\x00\x08\x00\x00\x00")
		le.PutUint64(out[8:], at[0])
	} else {
		copy(out, "II*\x00")
		le.PutUint32(out[4:], uint32(at[0]))
	}
	return out
}

func inOrder(i int, at []uint64) uint64 {
	if i+1 < len(at) {
		return at[i+1]
	}
	return 0
}

// sound is a page of one tile, of size², whose bytes are the first of data.
func sound(size uint32, data []byte, compression uint16) page {
	return page{
		256: long(size), 257: long(size), 258: short(8), 259: short(compression), 262: short(1), 277: short(1),
		322: long(size), 323: long(size), 324: long(header), 325: long(uint32(len(data))),
		33550: double(10, 10, 0), 33922: double(0, 0, 0, 500_000, 5_000_000, 0),
		34735: short(1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633),
	}
}

// plain is a small file with what change makes of its page.
func plain(rng *rand.Rand, change func(page)) []byte {
	data := make([]byte, 16*16)
	p := sound(16, data, 1)
	change(p)
	return file(rng.IntN(2) == 0, data, []page{p}, inOrder)
}

// entry changes one entry of a directory of a valid file.
func (m *Maker) entry(rng *rand.Rand) (string, []byte) {
	v := pick(rng, m.tiffs)
	content := bytes.Clone(v.Content)
	for range 1 + rng.IntN(2) {
		damageEntry(rng, content)
	}
	return v.Name, content
}

func damageEntry(rng *rand.Rand, content []byte) {
	var order binary.ByteOrder = binary.LittleEndian
	if content[0] == 'M' {
		order = binary.BigEndian
	}
	at, entry, head := int(order.Uint32(content[4:])), 12, 2
	if order.Uint16(content[2:]) == 43 {
		at, entry, head = int(order.Uint64(content[8:])), 20, 8
	}
	for rng.IntN(3) == 0 { // a later directory
		link := at + head + entry*int(order.Uint16(content[at+head-2:])|order.Uint16(content[at:]))
		if link+4 > len(content) || order.Uint32(content[link:]) == 0 || int(order.Uint32(content[link:]))+100 > len(content) {
			break
		}
		at = int(order.Uint32(content[link:]))
	}
	if at+head+entry > len(content) {
		return
	}
	count := int(order.Uint16(content[at:]) | order.Uint16(content[at+head-2:]))
	e := content[min(at+head+entry*rng.IntN(max(count, 1)), len(content)-entry):]
	switch rng.IntN(4) {
	case 0:
		order.PutUint16(e, uint16(pick(rng, []int{254, 256, 257, 258, 259, 262, 273, 277, 278, 279, 284, 317, 322, 323, 324, 325, 330, 338, 339, 347, 33550, 33922, 34264, 34735, 42112, rng.IntN(1 << 16)})))
	case 1:
		order.PutUint16(e[2:], uint16(rng.IntN(20)))
	case 2:
		copy(e[4:], number(rng, entry/2-2, len(content)))
	default:
		copy(e[entry/2+2:], number(rng, entry/2-2, len(content)))
	}
}

// bomb is a block that grows a thousandfold, and may claim to grow further.
func (m *Maker) bomb(rng *rand.Rand) (string, []byte) {
	v := pick(rng, m.bombs)
	content := bytes.Clone(v.Content)
	if size := pick(rng, []uint32{0, 40_000, 65_520, 1<<31 - 16}); size > 0 {
		le := binary.LittleEndian
		at := int(le.Uint32(content[4:]))
		for i := range int(le.Uint16(content[at:])) {
			e := content[at+2+12*i:]
			switch le.Uint16(e) {
			case 256, 257, 322, 323:
				le.PutUint16(e[2:], tLong)
				le.PutUint32(e[8:], size)
			}
		}
	}
	return v.Name, content
}

// deflated are 64 MiB of zeros: 64 KiB.
var deflated = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	w, _ := zlib.NewWriterLevel(&b, zlib.BestCompression)
	_, _ = io.CopyN(w, zeros{}, 64<<20)
	_ = w.Close()
	return b.Bytes()
})

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func (m *Maker) deflateBomb(rng *rand.Rand) (string, []byte) {
	data := deflated()
	p := sound(pick(rng, []uint32{4096, 8192, 16384, 40_000}), data, pick(rng, []uint16{8, 32946}))
	p[258] = short(pick(rng, []uint16{8, 16, 32, 64}))
	if rng.IntN(2) == 0 {
		bands := pick(rng, []uint16{3, 100, 4096, 65535})
		p[277], p[284] = short(bands), short(pick(rng, []uint16{1, 2}))
	}
	return "bomb.tif", file(rng.IntN(2) == 0, data, []page{p}, inOrder)
}

// amplified is one block that stands in every place of a large image.
func (m *Maker) amplified(rng *rand.Rand) (string, []byte) {
	data := deflated()
	p := sound(4096, data, 8)
	across := pick(rng, []uint32{10, 100})
	offsets, counts := make([]uint32, across*across), make([]uint32, across*across)
	for i := range offsets {
		offsets[i], counts[i] = header, uint32(len(data))
	}
	p[256], p[257] = long(4096*across), long(4096*across)
	p[324], p[325] = long(offsets...), long(counts...)
	return "amplified.tif", file(rng.IntN(2) == 0, data, []page{p}, inOrder)
}

// enormous claims sizes and counts that it has not.
func (m *Maker) enormous(rng *rand.Rand) (string, []byte) {
	huge := func() uint32 {
		return pick(rng, []uint32{1, 16, 1 << 16, 1 << 20, 1 << 24, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1<<32 - 16})
	}
	return "enormous.tif", plain(rng, func(p page) {
		for range 1 + rng.IntN(4) {
			switch rng.IntN(7) {
			case 0:
				p[256] = long(huge())
			case 1:
				p[257] = long(huge())
			case 2:
				p[322], p[323] = long(huge()&^15), long(huge()&^15)
			case 3:
				p[277] = short(uint16(huge() - 1))
			case 4:
				f := p[324]
				f.count = uint64(huge())
				p[324], p[325] = f, field{f.kind, f.count, p[325].data}
			case 5: // in strips
				delete(p, 322)
				delete(p, 323)
				p[273], p[279], p[278] = p[324], p[325], long(huge())
				delete(p, 324)
				delete(p, 325)
				p[324] = long(header)
			case 6: // a value beyond everything
				p[uint16(pick(rng, []int{270, 42112, 34737, 33550, 34264, 700}))] = field{uint16(1 + rng.IntN(18)), uint64(huge()) << rng.IntN(32), make([]byte, 40)}
			}
		}
	})
}

// loop has directories that lead back.
func (m *Maker) loop(rng *rand.Rand) (string, []byte) {
	data := make([]byte, 256)
	pages := make([]page, 1+rng.IntN(5))
	for i := range pages {
		pages[i] = sound(16, data, 1)
		if i > 0 {
			pages[i][254] = long(uint32(rng.IntN(8)))
		}
		if rng.IntN(2) == 0 {
			to := uint32(header + len(data) + rng.IntN(600))
			pages[i][uint16(pick(rng, []int{330, 34665, 34853, 40965}))] = field{pick(rng, []uint16{tLong, tIFD}), 1, binary.LittleEndian.AppendUint32(nil, to)}
		}
	}
	return "loop.tif", file(rng.IntN(2) == 0, data, pages, func(_ int, at []uint64) uint64 { return pick(rng, at) })
}

// chain has very many directories.
func (m *Maker) chain(rng *rand.Rand) (string, []byte) {
	data := make([]byte, 256)
	pages := make([]page, pick(rng, []int{100, 5000, 40_000}))
	empty := rng.IntN(2) == 0
	for i := range pages {
		if pages[i] = sound(16, data, 1); i > 0 {
			pages[i][254] = long(pick(rng, []uint32{0, 1, 2, 4, 5}))
			if empty && rng.IntN(2) == 0 {
				pages[i] = page{256: short(1)}
			}
		}
	}
	return "chain.tif", file(rng.IntN(2) == 0, data, pages, inOrder)
}

// millions has as many blocks as it says.
func (m *Maker) millions(rng *rand.Rand) (string, []byte) {
	across := pick(rng, []uint32{300, 1000, 1500})
	data := make([]byte, 256)
	p := sound(16, data, 1)
	p[256], p[257] = long(16*across), long(16*across)
	offsets, counts := make([]uint32, across*across), make([]uint32, across*across)
	odd := rng.IntN(3)
	for i := range offsets {
		offsets[i], counts[i] = header, 256
		switch {
		case odd == 1 && rng.IntN(1000) == 0:
			offsets[i], counts[i] = 0, 0
		case odd == 2 && rng.IntN(1000) == 0:
			counts[i] = 1<<32 - 1
		}
	}
	p[324], p[325] = long(offsets...), long(counts...)
	return "millions.tif", file(rng.IntN(2) == 0, data, []page{p}, inOrder)
}

func (m *Maker) geoKeys(rng *rand.Rand) (string, []byte) {
	return "geokeys.tif", plain(rng, func(p page) {
		keys := []uint16{1, uint16(rng.IntN(3)), uint16(rng.IntN(3)), uint16(rng.IntN(20))}
		for range rng.IntN(20) {
			id := pick(rng, []uint16{1024, 1025, 1026, 2048, 2049, 2050, 2051, 2052, 2054, 2056, 2057, 2058, 2059, 2061, 2062, 3072, 3073, 3074, 3075, 3076, 3080, 3081, 3082, 3092, 4096, 4097, 4099})
			where := pick(rng, []uint16{0, 34735, 34736, 34737, uint16(rng.Uint32())})
			keys = append(keys, id, where, uint16(pick(rng, []int{0, 1, 3, 65535})), uint16(pick(rng, []int{0, 1, 32767, 65535, 4326, 32633, 9001, 9102, rng.IntN(1 << 16)})))
		}
		if rng.IntN(3) > 0 {
			keys[3] = uint16(len(keys)/4 - 1)
		}
		p[34735] = short(keys...)
		doubles := make([]float64, rng.IntN(8)+1)
		for i := range doubles {
			doubles[i] = odd(rng)
		}
		p[34736] = double(doubles...)
		p[34737] = ascii(pick(rng, []string{"", "|", strings.Repeat("|", 5000), strings.Repeat("PROJCS[", 5000), "ESRI PE String = " + wkt(rng), strings.Repeat("x", 60_000)}))
	})
}

// wkt is a coordinate reference system that leads to a file, or is no good.
func wkt(rng *rand.Rand) string {
	target := pick(rng, Targets)
	return pick(rng, []string{
		`GEOGCS["x",DATUM["x",SPHEROID["x",6378137,298.25]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433],EXTENSION["PROJ4","+proj=longlat +ellps=GRS80 +nadgrids=` + target + ` +no_defs"]]`,
		`PROJCS["x",GEOGCS["x",DATUM["x",SPHEROID["x",6378137,298.25],EXTENSION["PROJ4_GRIDS","` + target + `"]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]],PROJECTION["Mercator_1SP"],UNIT["metre",1],EXTENSION["PROJ4","+proj=merc +nadgrids=` + target + ` +wktext"]]`,
		`GEOGCS["x",DATUM["x",SPHEROID["x",0,0]],PRIMEM["Greenwich",0],UNIT["degree",0]]`,
		`GEOGCS["x",DATUM["x",SPHEROID["x",1e308,1e-308]],PRIMEM["x",1e308],UNIT["degree",1e308]]`,
		"EPSG:32633", "+proj=pipeline +step +proj=axisswap", "+init=" + target + ":1", target, "urn:ogc:def:crs:EPSG::99999",
	})
}

// crsPath has PROJ asked for grids that are files of ours.
func (m *Maker) crsPath(rng *rand.Rand) (string, []byte) {
	return "crs.tif", plain(rng, func(p page) {
		// User-defined, with WKT as citation, which GDAL takes for ESRI's.
		p[34735] = short(1, 1, 0, 4, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32767, 3073, 34737, 65535, 0)
		text := "ESRI PE String = " + wkt(rng) + "|"
		p[34735] = short(1, 1, 0, 4, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32767, 3073, 34737, uint16(len(text)), 0)
		p[34737] = ascii(text)
	})
}

func odd(rng *rand.Rand) float64 {
	return pick(rng, []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1e308, -1e308, 5e-324, 1, -1, 180, 1e9, rng.NormFloat64() * 1e6})
}

func (m *Maker) transform(rng *rand.Rand) (string, []byte) {
	return "transform.tif", plain(rng, func(p page) {
		some := func(n int) field {
			v := make([]float64, n)
			for i := range v {
				v[i] = odd(rng)
			}
			return double(v...)
		}
		switch rng.IntN(4) {
		case 0:
			p[33550] = some(3)
		case 1:
			p[33922] = some(6)
		case 2:
			delete(p, 33550)
			delete(p, 33922)
			p[34264] = some(16)
		case 3: // control points
			delete(p, 33550)
			p[33922] = some(6 * (1 + rng.IntN(300)))
		}
		if rng.IntN(3) == 0 {
			p[34735] = short(1, 1, 0, 3, 1024, 0, 1, 2, 1025, 0, 1, 1, 2048, 0, 1, 4326)
		}
	})
}

// paths has references where GDAL keeps text.
func (m *Maker) paths(rng *rand.Rand) (string, []byte) {
	target := pick(rng, Targets)
	return "paths.tif", plain(rng, func(p page) {
		for _, tag := range []uint16{269, 270, 271, 272, 285, 305, 306, 315, 316, 333, 33432} {
			if rng.IntN(3) == 0 {
				p[tag] = ascii(target)
			}
		}
		p[42112] = ascii(pick(rng, []string{
			`<GDALMetadata><Item name="SUBDATASET_1_NAME" domain="SUBDATASETS">` + target + `</Item><Item name="RPC_FILE" domain="RPC">` + target + `</Item></GDALMetadata>`,
			`<GDALMetadata><Item name="x" domain="xml:VRT"><VRTDataset rasterXSize="1" rasterYSize="1"/></Item><Item name="SRS" domain="GEOLOCATION">` + target + `</Item><Item name="X_DATASET" domain="GEOLOCATION">` + target + `</Item><Item name="Y_DATASET" domain="GEOLOCATION">` + target + `</Item></GDALMetadata>`,
			`<!DOCTYPE x [<!ENTITY e SYSTEM "` + target + `">]><GDALMetadata><Item name="x">&e;</Item></GDALMetadata>`,
			`<GDALMetadata>` + strings.Repeat(`<Item name="x">`, 5000) + `</GDALMetadata>`,
			`<GDALMetadata><Item name="OFFSET" sample="0" role="offset">nan</Item><Item name="SCALE" sample="99999" role="scale">inf</Item><Item name="` + strings.Repeat("x", 50_000) + `">y</Item></GDALMetadata>`,
			`<GDALMetadata>` + strings.Repeat(`<Item name="a`+target+`">`+target+`</Item>`, 3000) + `</GDALMetadata>`,
			`<GDALMetadata><Item name="OVERVIEW_FILE" domain="OVERVIEWS">` + target + `</Item><Item name="INTERNAL_MASK_FLAGS_1">` + target + `</Item></GDALMetadata>`,
			"<\x00\xff\xfe" + target,
		}))
		p[42113] = ascii(pick(rng, []string{"nan", "1e999", target, "-", strings.Repeat("9", 10_000)}))
		p[700] = field{1, uint64(len(target)), []byte(target)}
		p[50844] = ascii("<RPC>" + target + "</RPC>")
	})
}
