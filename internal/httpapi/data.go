package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// data serves the bytes of outputs, by their own names, whose bytes never
// change, and by stable names, which lead to what is current.
func (s *server) data(w http.ResponseWriter, r *http.Request) {
	tile, stable, err := s.findData(r.Context(), strings.TrimPrefix(r.URL.Path, "/data/"))
	if err != nil {
		s.problem(w, r, err)
		return
	}
	switch elsewhere, err := s.Stores.Redirect(r.Context(), tile.StoreID, tile.ObjectKey, r.Method, redirectExpires); {
	case err != nil:
		s.problem(w, r, storeAway(err))
		return
	case elsewhere != "":
		// As good as the request's token, and not for a cache to keep.
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Location", elsewhere)
		w.WriteHeader(http.StatusFound)
		return
	}
	object, stat, err := s.Stores.Open(r.Context(), tile.StoreID, tile.ObjectKey)
	switch {
	case errors.Is(err, storage.ErrNotExist):
		s.problem(w, r, catalog.Errorf(catalog.CodeNotFound, "the catalogue has a row for %s, but its object is missing from the store: begin the unit again to repair it", tile.ObjectKey).Because(err))
		return
	case err != nil:
		s.problem(w, r, storeAway(err))
		return
	}
	defer object.Close()
	if stat.SizeBytes != tile.SizeBytes {
		s.problem(w, r, fmt.Errorf("object %s has %d bytes, and its row says %d", tile.ObjectKey, stat.SizeBytes, tile.SizeBytes))
		return
	}

	h := w.Header()
	h.Set("Content-Type", tile.Facts.MediaType)
	h.Set("ETag", `"`+tile.Checksum+`"`)
	modified := stat.Modified
	if stable {
		h.Set("Cache-Control", "no-cache")
		// What a stable name leads to can go back in time, and would then look
		// unmodified: the ETag alone tells.
		modified = time.Time{}
	} else {
		h.Set("Cache-Control", s.cacheScope()+", max-age=31536000, immutable")
	}
	dropEmptyRanges(r.Header)
	http.ServeContent(&dataWriter{ResponseWriter: w, s: s, r: r, rc: http.NewResponseController(w)}, r, "", modified, object)
}

// redirectExpires is how long a reader may go on using what a redirect gave: GDAL keeps
// it for as long as it says it is good.
const redirectExpires = time.Hour

func storeAway(err error) error {
	var domain *catalog.Error
	if errors.As(err, &domain) {
		return err
	}
	return catalog.Errorf(catalog.CodeStoreUnavailable, "the store could not be read: try again, and tell whoever runs it").Because(err)
}

// dropEmptyRanges leaves out the last no bytes (bytes=-0), which cannot be satisfied
// (RFC 9110, 14.1.2), and which net/http serves. Of nothing else one stays: dataWriter refuses
// what comes of them, once the conditions were looked at.
func dropEmptyRanges(h http.Header) {
	ranges, ok := strings.CutPrefix(h.Get("Range"), "bytes=")
	if !ok {
		return
	}
	var kept []string
	for one := range strings.SplitSeq(ranges, ",") {
		one = strings.TrimSpace(one)
		suffix, ok := strings.CutPrefix(one, "-")
		if n, err := strconv.ParseInt(strings.TrimSpace(suffix), 10, 64); one != "" && (!ok || err != nil || n != 0) {
			kept = append(kept, one)
		}
	}
	if len(kept) == 0 {
		kept = []string{"-0"}
	}
	h.Set("Range", "bytes="+strings.Join(kept, ","))
}

func (s *server) cacheScope() string {
	if s.Anonymous == AnonymousRead {
		return "public"
	}
	return "private"
}

// ownName matches final names: tile id, unit and attempt. No tile id ends like
// that (see catalog.CheckTileID), so that no stable name is one.
var ownName = regexp.MustCompile(`\.[0-9a-f]{12}\.[0-9a-f]{12}$`)

// findData finds the output that a name leads to. Names that no output can have
// (GDAL looks for .aux.xml, .ovr, .msk and more beside every raster) cost no
// query.
func (s *server) findData(ctx context.Context, name string) (tile catalog.Tile, stable bool, err error) {
	nothing := catalog.Errorf(catalog.CodeNotFound, "no output has this name: send an object_key, or {collection}/{tile_id}{ext}")
	collection, rest, _ := strings.Cut(name, "/")
	ext, ok := catalog.HasExtension(rest)
	stem := strings.TrimSuffix(rest, ext)
	own := ownName.FindString(stem)
	if !ok || catalog.CheckCollectionID(collection) != nil || catalog.CheckTileID(strings.TrimSuffix(stem, own)) != nil {
		return catalog.Tile{}, false, nothing
	}
	ctx, cancel := context.WithTimeout(ctx, requestDeadline)
	defer cancel()
	if own != "" {
		tile, err = s.Catalogue.TileByObject(ctx, name)
	} else {
		tile, err = s.Catalogue.CurrentTile(ctx, collection, stem)
	}
	switch {
	case catalog.IsCode(err, catalog.CodeNotFound), catalog.IsCode(err, catalog.CodeUnknownCollection):
		return catalog.Tile{}, false, nothing
	case err != nil:
		return catalog.Tile{}, false, err
	}
	if has, err := catalog.Extension(tile.Facts.MediaType); err != nil || has != ext {
		return catalog.Tile{}, false, nothing
	}
	return tile, own == "", nil
}

// dataWriter stands between ServeContent and the client: its errors become
// problems, and every piece that goes out has a deadline of its own.
type dataWriter struct {
	http.ResponseWriter
	s       *server
	r       *http.Request
	rc      *http.ResponseController
	refused bool
}

func (w *dataWriter) WriteHeader(status int) {
	var err *catalog.Error
	if h := w.Header(); status == http.StatusPartialContent && h.Get("Content-Length") == "0" {
		status = http.StatusRequestedRangeNotSatisfiable
		_, size, _ := strings.Cut(h.Get("Content-Range"), "/")
		h.Set("Content-Range", "bytes */"+size)
	}
	switch status {
	case http.StatusRequestedRangeNotSatisfiable:
		err = catalog.Errorf(catalog.CodeRangeNotSatisfiable, "the range lies outside the output, or is malformed; Content-Range has its size").At("Range")
	case http.StatusPreconditionFailed:
		err = catalog.Errorf(catalog.CodePreconditionFailed, "If-Match or If-Unmodified-Since does not hold: get the output anew")
	case http.StatusOK, http.StatusPartialContent, http.StatusNotModified:
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.refused = true
	if err == nil {
		w.s.problem(w.ResponseWriter, w.r, fmt.Errorf("serve %s: status %d", w.r.URL.Path, status))
		return
	}
	w.s.problem(w.ResponseWriter, w.r, err)
}

func (w *dataWriter) Write(p []byte) (int, error) {
	if w.refused {
		return len(p), nil
	}
	_ = w.rc.SetWriteDeadline(time.Now().Add(idle))
	return w.ResponseWriter.Write(p)
}

// piece is what must go out within idle: slower clients than 1 Mbit/s are cut off.
const piece = 8 << 20

// ReadFrom lets the kernel send a file piece by piece.
func (w *dataWriter) ReadFrom(src io.Reader) (sent int64, err error) {
	limited, ok := src.(*io.LimitedReader)
	if !ok || w.refused {
		return io.Copy(struct{ io.Writer }{w}, src)
	}
	for limited.N > 0 {
		_ = w.rc.SetWriteDeadline(time.Now().Add(idle))
		part := &io.LimitedReader{R: limited.R, N: min(limited.N, piece)}
		n, err := io.Copy(w.ResponseWriter, part)
		sent += n
		limited.N -= n
		if err != nil || n == 0 {
			return sent, err
		}
	}
	return sent, nil
}
