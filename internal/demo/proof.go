package demo

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// proof is what the catalogue's tables and the store say, each read by itself, and
// where they disagree.
type proof struct {
	outputs       []output
	slots         map[string]string // slot → the key of its current unit
	objects       int
	bytes         int64
	current       int
	attempts      int
	done          int
	replaced      int
	disagreements disagreements
}

type disagreements []string

func (d *disagreements) add(format string, args ...any) {
	*d = append(*d, fmt.Sprintf(format, args...))
}

// output is a row of catalog.tiles.
type output struct {
	UnitKey, Collection, Tile, Version string
	Object                             string
	Size                               int64
	Checksum                           string
	// Location is what GDAL opens, Href what a browser does.
	Location, Href string
}

func (o output) slot() string { return o.Collection + "/" + o.Tile }
func (o output) unit() string { return o.slot() + " " + o.Version }

const (
	sqlOutputs = `
SELECT t.unit_key::text, t.collection_id, t.tile_id, u.version, t.object_key, t.size_bytes, t.checksum,
       s.location || t.object_key, s.href || t.object_key
FROM catalog.tiles t JOIN catalog.stores s USING (store_id) LEFT JOIN catalog.units u USING (unit_key)
ORDER BY t.object_key`

	// A slot is (collection, tile): its primary key allows one pointer.
	sqlSlots = `SELECT collection_id || '/' || tile_id, coalesce(unit_key::text, '') FROM catalog.slots`

	sqlAttempts = `
SELECT count(*), count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'replaced'),
       count(*) FILTER (WHERE state IN ('open', 'promoting'))
FROM catalog.attempts`
)

// prove compares the rows of a database with the objects of a store, and both with
// what was wanted. Its error says that something could not be read; what was
// read and disagrees is in the proof.
func prove(ctx context.Context, databaseURL string, store store, wanted []delivery) (p proof, err error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return p, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, sqlOutputs)
	if err != nil {
		return p, err
	}
	if p.outputs, err = pgx.CollectRows(rows, pgx.RowToStructByPos[output]); err != nil {
		return p, fmt.Errorf("read rows: %w", err)
	}
	p.slots = map[string]string{}
	var slot, unit string
	if rows, err = conn.Query(ctx, sqlSlots); err != nil {
		return p, err
	}
	if _, err = pgx.ForEachRow(rows, []any{&slot, &unit}, func() error { p.slots[slot] = unit; return nil }); err != nil {
		return p, fmt.Errorf("read slots: %w", err)
	}
	var open int
	if err := conn.QueryRow(ctx, sqlAttempts).Scan(&p.attempts, &p.done, &p.replaced, &open); err != nil {
		return p, fmt.Errorf("count attempts: %w", err)
	}
	if open > 0 {
		p.disagreements.add("%s still open or promoting", count(open, "attempt"))
	}
	objects, err := store.objects(ctx)
	if err != nil {
		return p, err
	}
	p.objects = len(objects)
	for _, o := range objects {
		p.bytes += o.size
	}
	p.compareObjects(objects)
	p.compareUnits(wanted)
	p.compareSlots(wanted)
	return p, store.compare(ctx, &p, objects)
}

// compareObjects: each row has its object, of its size and checksum, and each
// object its row.
func (p *proof) compareObjects(objects map[string]object) {
	rows := map[string]bool{}
	for _, o := range p.outputs {
		if rows[o.Object] {
			p.disagreements.add("two rows name the object %s", o.Object)
		}
		rows[o.Object] = true
		found, ok := objects[o.Object]
		switch {
		case !ok:
			p.disagreements.add("a row without an object: %s", o.Object)
		case found.size != o.Size:
			p.disagreements.add("%s has %d bytes, its row says %d", o.Object, found.size, o.Size)
		case found.checksum != o.Checksum:
			p.disagreements.add("%s is %s, its row says %s", o.Object, found.checksum, o.Checksum)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		if !rows[name] {
			p.disagreements.add("an object without a row: %s", name)
		}
	}
}

// compareUnits: each wanted unit has one row, and nothing else has.
func (p *proof) compareUnits(wanted []delivery) {
	rows := map[string]int{}
	for _, o := range p.outputs {
		rows[o.unit()]++
	}
	for _, d := range wanted {
		if rows[d.unit()] != 1 {
			p.disagreements.add("%s has %s, not one", d.unit(), count(rows[d.unit()], "row"))
		}
		delete(rows, d.unit())
	}
	for _, unit := range slices.Sorted(maps.Keys(rows)) {
		p.disagreements.add("nobody wanted %s", unit)
	}
}

// compareSlots: each slot points to the row that was wanted last of those in it.
func (p *proof) compareSlots(wanted []delivery) {
	latest := map[string]string{}
	for _, d := range wanted {
		latest[d.slot()] = d.Identity.Version
	}
	outputs := map[string]output{}
	for _, o := range p.outputs {
		outputs[o.UnitKey] = o
	}
	for _, slot := range slices.Sorted(maps.Keys(latest)) {
		o, ok := outputs[p.slots[slot]]
		switch {
		case !ok:
			p.disagreements.add("the slot %s has no current output", slot)
		case o.slot() != slot:
			p.disagreements.add("the slot %s points to an output of %s", slot, o.slot())
		case o.Version != latest[slot]:
			p.disagreements.add("%s of %s is current, not %s", o.Version, slot, latest[slot])
		default:
			p.current++
		}
	}
	for _, slot := range slices.Sorted(maps.Keys(p.slots)) {
		if latest[slot] == "" {
			p.disagreements.add("nobody wanted the slot %s", slot)
		}
	}
}

// stable gives what each stable name, {collection}/{tile}{ext}, has to lead to.
func (p *proof) stable() map[string]output {
	stable := map[string]output{}
	for _, o := range p.outputs {
		if p.slots[o.slot()] == o.UnitKey {
			stable[o.slot()+filepath.Ext(o.Object)] = o
		}
	}
	return stable
}

// look has GDAL open every object at the location that its row says: each is a raster of
// its window's size, and says which unit it is. Those that were under way at a kill, or
// that a later version supersedes, have the very pixels of the scene, over HTTP too.
func (d *demo) look(ctx context.Context, outputs []output, wanted []delivery) (disagreements, error) {
	units := map[string]delivery{}
	superseding := map[string]bool{}
	for _, w := range wanted {
		units[w.unit()] = w
		superseding[w.slot()] = superseding[w.slot()] || w.Identity.Version != versions[0].name
	}
	found := make([]disagreements, len(outputs))
	var looked atomic.Int32
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for i, o := range outputs {
		w, ok := units[o.unit()]
		if !ok {
			continue // prove has said so
		}
		endangered := d.endangered[w.unit()] || superseding[w.slot()]
		group.Go(func() (err error) {
			found[i], err = d.inspect(ctx, o, w.Identity.Window, endangered)
			d.progress.update("open objects with GDAL", int(looked.Add(1)), len(outputs))
			return err
		})
	}
	err := group.Wait()
	d.progress.settle()
	return slices.Concat(found...), err
}

// inspect compares one object with its row and, if asked to, with its window of
// the scene, by GDAL's checksum of each band.
func (d *demo) inspect(ctx context.Context, o output, w window, pixels bool) (found disagreements, err error) {
	seen, err := gdalinfo(ctx, o.Location, append(d.store.gdal(), "-checksum")...)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		found.add("%s does not open: %v", o.Object, err)
		return found, nil
	}
	if seen.Size != [2]int(w[2:]) {
		found.add("%s has %v pixels, its window %v", o.Object, seen.Size, w[2:])
	}
	if key := seen.tags()["CATALOGD_UNIT_KEY"]; key != o.UnitKey {
		found.add("%s says that it is the unit %q, its row %s", o.Object, key, o.UnitKey)
	}
	if !pixels {
		return found, nil
	}
	cut := filepath.Join(d.dir, strings.ReplaceAll(o.Object, "/", "_")+".vrt")
	defer os.Remove(cut)
	args := append([]string{"-q", "-of", "VRT", "-srcwin"}, w.args()...)
	if _, err := gdal(ctx, "gdal_translate", append(args, d.scene.Path, cut)...); err != nil {
		return nil, err
	}
	want, err := gdalinfo(ctx, cut, "-checksum")
	if err != nil {
		return nil, err
	}
	if !slices.Equal(seen.checksums(), want.checksums()) {
		found.add("%s has other pixels than the scene", o.Object)
	}
	over, err := gdalinfo(ctx, "/vsicurl/"+o.Href, "-checksum",
		"--config", "GDAL_DISABLE_READDIR_ON_OPEN", "EMPTY_DIR", "--config", "GDAL_HTTP_HEADERS", "Authorization: Bearer "+d.token)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		found.add("%s does not open over HTTP: %v", o.Object, err)
	case !slices.Equal(over.checksums(), want.checksums()):
		found.add("%s has other pixels over HTTP than the scene", o.Object)
	}
	return found, nil
}

// reach follows every stable name over HTTP to the bytes of what is current: catalogd
// sends them, or says where else they are, to somebody without its token.
func (d *demo) reach(ctx context.Context, p proof) (reached int, found disagreements, err error) {
	stable := p.stable()
	for _, name := range slices.Sorted(maps.Keys(stable)) {
		got, err := follow(ctx, d.server.url()+"/data/"+name, d.token)
		switch {
		case ctx.Err() != nil:
			return 0, nil, ctx.Err()
		case err != nil:
			found.add("/data/%s: %v", name, err)
		case got.checksum != stable[name].Checksum:
			found.add("/data/%s is %s, its row says %s", name, got.checksum, stable[name].Checksum)
		default:
			reached++
		}
	}
	return reached, found, nil
}

// follow reads what is at a URL, or where that leads to.
func follow(ctx context.Context, url, token string) (object, error) {
	stay := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return object{}, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := stay.Do(req)
	if err != nil {
		return object{}, err
	}
	defer resp.Body.Close()
	elsewhere, err := resp.Location()
	switch {
	case err == nil && token != "":
		return follow(ctx, elsewhere.String(), "")
	case resp.StatusCode != http.StatusOK:
		return object{}, fmt.Errorf("the answer is %s", resp.Status)
	}
	var o object
	o.size, o.checksum, err = hash(resp.Body)
	return o, err
}
