package upsert

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// apply is the step, from a staged object to a row. Until the intent is
// committed an error leaves the attempt as it was, so that the task can mend its
// file and complete again. From then on the step finishes under its own
// deadline, whoever hangs up; a crash is rolled forward by recovery.
//
// found is what was staged, where that is open already; else it is opened.
func (s *Step) apply(ctx context.Context, found storage.Staged, a catalog.Attempt, c catalog.Collection, req CompleteRequest, intend intend) (Outcome, error) {
	store, err := s.store(a.StoreID)
	if err != nil {
		return Outcome{}, err
	}
	staged, key, source, err := s.stage(ctx, store, found, a, c)
	if err != nil {
		return Outcome{}, err
	}
	defer staged.Close()
	beside := make(chan error, 1)
	go func() { beside <- alone(ctx, store, a) }()
	facts, checksum, err := s.probe(ctx, staged, a, c, req)
	if refused := <-beside; refused != nil && !catalog.IsCode(err, catalog.CodeDriverRefused) {
		err = refused // a format that cannot hold what lies beside it is told first
	}
	if err != nil {
		return Outcome{}, err
	}
	intent, err := newIntent(a, req, key, staged.Size(), checksum, facts)
	if err != nil {
		return Outcome{}, err
	}
	deadline := s.promoting(store, intent)
	if err := intend(ctx, intent, deadline); err != nil {
		return Outcome{}, err
	}
	s.at(ctx, PointIntended, a.ID)
	a.Intent = &intent
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadline)
	defer cancel()
	return s.finish(ctx, store, a, staged.Fingerprint(), source, true)
}

// finish is the step from the intent on: of the object with the fingerprint, at
// either of its names; fresh where nobody can have promoted it.
func (s *Step) finish(ctx context.Context, store storage.Store, a catalog.Attempt, fingerprint, source string, fresh bool) (Outcome, error) {
	etag, err := s.promote(ctx, store, a, fingerprint, fresh)
	if err != nil {
		return Outcome{}, err
	}
	outcome, err := s.upsert(ctx, a, etag)
	if err != nil {
		return Outcome{}, err
	}
	s.tidy(ctx, store, a, source, outcome.Tile)
	return outcome, nil
}

// intend commits the future row, and so turns the attempt into a promoting one, until
// deadline from now.
type intend func(ctx context.Context, intent catalog.Intent, deadline time.Duration) error

// promoting is how long a step has from its intent to its end.
func (s *Step) promoting(store storage.Store, intent catalog.Intent) time.Duration {
	if _, copies := store.(storage.Copier); copies {
		return s.PromoteDeadline + reading(intent.SizeBytes)
	}
	return s.PromoteDeadline
}

// stage opens what the task staged or, where the collection's writers are not
// trusted, a copy of it that nobody else can open, and gives its key. source is
// the fingerprint of what the task staged.
func (s *Step) stage(ctx context.Context, store storage.Store, staged storage.Staged, a catalog.Attempt, c catalog.Collection) (_ storage.Staged, key, source string, err error) {
	if staged == nil {
		if staged, err = openStaged(ctx, store, a); err != nil {
			return nil, "", "", err
		}
	}
	if staged.Size() == 0 {
		staged.Close()
		return nil, "", "", catalog.Errorf(catalog.CodeEmptyOutput, "%s is empty: write the raster, close it, then hand it over again", a.StagingKey)
	}
	key, source = a.StagingKey, staged.Fingerprint()
	if c.Policy.StagingCopied {
		ctx, cancel := context.WithTimeout(ctx, s.ProbeDeadline+2*reading(staged.Size()))
		defer cancel()
		key = catalog.StagingName(a.ID, ".copy")
		_, _, err = store.WriteStaged(ctx, key, io.NewSectionReader(staged, 0, staged.Size()), s.MaxOutputBytes)
		staged.Close()
		if err == nil {
			staged, err = store.OpenStaged(ctx, key)
		}
		if err != nil {
			return nil, "", "", wrapStaged(a, err)
		}
	}
	s.at(ctx, PointStaged, a.ID)
	return staged, key, source, nil
}

// openStaged opens what the task staged. That there is nothing counts only while the
// store's sentinel reads: of a bucket that is gone nobody shall write the output again.
func openStaged(ctx context.Context, store storage.Store, a catalog.Attempt) (storage.Staged, error) {
	staged, err := store.OpenStaged(ctx, a.StagingKey)
	if errors.Is(err, storage.ErrNotExist) {
		if sentinel := store.Sentinel(ctx); sentinel != nil {
			err = sentinel
		}
	}
	if err != nil {
		return nil, wrapStaged(a, err)
	}
	return staged, nil
}

// What GDAL, and SQLite of a database that was not closed, look for beside a file:
// after its name, and after its name without its extension.
var (
	sidecars     = inBothCases(".aux.xml", ".aux", ".ovr", ".msk", ".msk.ovr", "-wal", "-shm", "-journal")
	stemSidecars = inBothCases(".tfw", ".tifw", ".wld", ".j2w", ".jp2w", ".tab", ".aux", ".rrd", ".rpb", ".rpc", "_rpc.txt", ".imd")
)

func inBothCases(suffixes ...string) []string {
	for _, suffix := range suffixes {
		suffixes = append(suffixes, strings.ToUpper(suffix))
	}
	return suffixes
}

// alone refuses a staged file that has sidecars: it alone gets a final name, and
// would then be another file than its writer's. It asks for each name, since
// staging may hold any number of others' files.
func alone(ctx context.Context, store storage.Store, a catalog.Attempt) error {
	stem := strings.TrimSuffix(a.StagingKey, path.Ext(a.StagingKey))
	var beside []string
	for _, after := range sidecars {
		beside = append(beside, a.StagingKey+after)
	}
	for _, after := range stemSidecars {
		beside = append(beside, stem+after)
	}
	found, err := store.Existing(ctx, beside)
	if err != nil {
		return wrapStaged(a, err)
	}
	for _, object := range found {
		if object.SizeBytes > 0 {
			return catalog.Errorf(catalog.CodeSidecar, "%s lies beside %s, and only the file itself is promoted: write what it holds into the file (internal overviews, masks and georeferencing; a database closed), or delete it; then hand it over again",
				path.Base(object.Key), path.Base(a.StagingKey))
		}
	}
	return nil
}

// probe hashes the staged object and has it proved complete, at the same time,
// through the descriptor that is already open. Of bytes that are not those which were
// announced nothing else is said: they say nothing of the task's file.
func (s *Step) probe(ctx context.Context, staged storage.Staged, a catalog.Attempt, c catalog.Collection, req CompleteRequest) (facts catalog.Facts, checksum string, err error) {
	if req.Size != nil && *req.Size != staged.Size() {
		return facts, "", catalog.Errorf(catalog.CodeSizeMismatch, "%s has %d bytes, but %d were announced: close and sync the file before completing", a.StagingKey, staged.Size(), *req.Size).At("/size_bytes")
	}
	ctx, cancel := context.WithTimeout(ctx, s.ProbeDeadline+reading(staged.Size()))
	defer cancel()
	var refused error
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		checksum, err = hash(ctx, staged)
		return wrapStaged(a, err)
	})
	group.Go(func() (err error) {
		facts, err = s.Prober.Probe(ctx, staged, staged.Size(), c.Policy.Probe(a.MediaType))
		switch judged := (*catalog.Error)(nil); {
		case !errors.As(err, &judged):
			return wrapStaged(a, err)
		case req.SHA256 == "":
			return err
		}
		refused = err
		return nil
	})
	if err := group.Wait(); err != nil {
		return facts, "", err
	}
	if err := cmp.Or(req.checkChecksum(checksum), refused); err != nil {
		return facts, "", err
	}
	if err := catalog.CheckTags(facts.Tags, a); err != nil {
		return facts, "", err
	}
	s.at(ctx, PointProbed, a.ID)
	return facts, checksum, nil
}

// promote gives the staged object its final name, and tells its ETag. A definite
// refusal ends the attempt; anything else leaves it to recovery.
func (s *Step) promote(ctx context.Context, store storage.Store, a catalog.Attempt, fingerprint string, fresh bool) (etag string, err error) {
	stagedKey := a.Intent.StagedKey
	if copier, ok := store.(storage.Copier); ok {
		etag, err = copier.PromoteAs(ctx, storage.Promotion{
			StagedKey: stagedKey, FinalKey: a.ObjectKey, Fingerprint: fingerprint, SHA256: strings.TrimPrefix(a.Intent.Checksum, "sha256:"),
			About: about(a), Fresh: fresh,
		})
	} else {
		err = store.Promote(ctx, stagedKey, a.ObjectKey, fingerprint)
	}
	if errors.Is(err, storage.ErrNotExist) {
		// Gone from both names: true only of a store that is there.
		if sentinel := store.Sentinel(ctx); sentinel != nil {
			err = sentinel
		}
	}
	if err == nil {
		s.at(ctx, PointPromoted, a.ID)
		return etag, nil
	}
	problem := storeProblem("promote "+a.ObjectKey, err)
	if errors.Is(err, storage.ErrSync) {
		s.giveUp(ctx, store, a, stagedKey)
	}
	if definite(err) {
		s.fail(ctx, a, problem)
	} else {
		problem.Message += "; the attempt stays promoting and is finished by itself, or when you complete it again"
	}
	return "", problem
}

// about is what an object says of itself, where its store keeps that.
func about(a catalog.Attempt) map[string]string {
	return map[string]string{
		"content-type": a.Intent.MediaType,
		"unit-key":     a.UnitKey.String(), "version": a.Version, "identity": string(a.Identity), "attempt": a.ID.String(),
	}
}

// giveUp removes a file whose fsync failed, under either name, before its attempt
// ends: what recovery found of it later, in memory and not on the disk, would be
// synced a second time, and that may lie.
func (s *Step) giveUp(ctx context.Context, store storage.Store, a catalog.Attempt, stagedKey string) {
	for _, key := range []string{stagedKey, a.ObjectKey} {
		if err := store.Delete(ctx, key); err != nil {
			s.Logger.ErrorContext(ctx, "a file that could not be made durable cannot be removed either", "attempt", a.ID, "key", key, "error", err)
		}
	}
}

// definite tells a promotion that can never succeed from one whose outcome is
// not known, or whose obstacle may pass.
func definite(err error) bool {
	for _, known := range []error{
		storage.ErrChanged, storage.ErrSync, storage.ErrCrossDevice, storage.ErrLinked,
		storage.ErrNotRegular, storage.ErrExist, storage.ErrNotExist, storage.ErrName,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// upsert writes the row, and tries again while the database cannot be reached:
// a commit whose reply was lost is found by looking, never assumed.
func (s *Step) upsert(ctx context.Context, a catalog.Attempt, etag string) (Outcome, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		outcome, err := s.Ledger.Conclude(ctx, a.ID, etag)
		if err == nil {
			s.at(ctx, PointUpserted, a.ID)
			return outcome, nil
		}
		var problem *catalog.Error
		if errors.Is(err, ErrRefused) && errors.As(err, &problem) {
			s.fail(ctx, a, problem)
		}
		if !catalog.IsCode(err, catalog.CodeDatabaseUnavailable) {
			return Outcome{}, err
		}
		s.Logger.WarnContext(ctx, "write the row again", "attempt", a.ID, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return Outcome{}, catalog.Errorf(catalog.CodeOutcomeUnknown, "the output of %s is promoted, but the database did not answer in time; the row is written by itself when it does: ask again", slot(a)).Because(err)
		}
	}
}

// tidy removes what is still staged and moves the stable name. What fails here
// is done by the next sweep. Where promotion leaves the staged object, nobody waits for
// its removal, but at a name of the task's own choosing: the answer says that the name is
// free, and the same bytes that come there next would be taken for these.
func (s *Step) tidy(ctx context.Context, store storage.Store, a catalog.Attempt, source string, tile catalog.Tile) {
	unstage := func(ctx context.Context) {
		if err := s.unstage(ctx, store, a, source); err != nil {
			s.Logger.WarnContext(ctx, "leave a staged object to the sweep", "attempt", a.ID, "error", err)
		}
	}
	_, copies := store.(storage.Copier)
	if _, own := catalog.ParseStagingName(a.StagingKey); copies && own {
		s.underway.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.PromoteDeadline)
			defer cancel()
			unstage(ctx)
		})
	} else {
		unstage(ctx)
	}
	var pointed *Pointed
	if tile.Current {
		pointed = &Pointed{Collection: a.Collection, TileID: a.TileID, StoreID: tile.StoreID, ObjectKey: tile.ObjectKey}
	}
	if err := s.link(ctx, a.Collection, a.TileID, pointed); err != nil {
		s.Logger.WarnContext(ctx, "leave a stable name to the sweep", "slot", slot(a), "error", err)
	}
	s.at(ctx, PointTidied, a.ID)
}

// unstage removes what the task staged, and the copy of it that was promoted where
// promotion leaves one. A name of the task's own choosing is free again once the row is
// committed: it is removed only while it is what this attempt found there.
func (s *Step) unstage(ctx context.Context, store storage.Store, a catalog.Attempt, source string) error {
	if a.Intent.StagedKey != a.StagingKey {
		if err := store.Delete(ctx, a.Intent.StagedKey); err != nil {
			return err
		}
	}
	if _, own := catalog.ParseStagingName(a.StagingKey); !own {
		staged, err := store.OpenStaged(ctx, a.StagingKey)
		if errors.Is(err, storage.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer staged.Close()
		if staged.Fingerprint() != source {
			return nil
		}
	}
	return store.Delete(ctx, a.StagingKey)
}

func newIntent(a catalog.Attempt, req CompleteRequest, stagedKey string, size int64, checksum string, f catalog.Facts) (catalog.Intent, error) {
	given := over(a.Given, req.Given)
	if given.Acquired.IsZero() {
		given.Acquired = f.Acquired
	}
	footprint, err := catalog.EncodeFootprint(f.Footprint)
	if err != nil {
		return catalog.Intent{}, err
	}
	return catalog.Intent{
		StagedKey: stagedKey, SizeBytes: size, Checksum: checksum,
		Driver: f.Driver, MediaType: f.MediaType, IsCOG: f.IsCOG, CRS: f.CRS, CRSWKT: f.CRSWKT, Transform: f.Transform,
		Width: f.Width, Height: f.Height, Bands: f.Bands, Layout: f.Layout, Layers: f.Layers, Footprint: footprint,
		Acquired: given.Acquired.Normal(), Properties: given.Properties,
	}, nil
}

// hashBuffers are kept: to the kernel, fresh memory for each costs as much as the reading.
var hashBuffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// hash gives a staged object's checksum as rows have it: that which its store vouches
// for, else it reads the object through.
func hash(ctx context.Context, staged storage.Staged) (string, error) {
	if voucher, ok := staged.(storage.Voucher); ok && voucher.SHA256() != "" {
		return "sha256:" + voucher.SHA256(), nil
	}
	digest := sha256.New()
	body := io.NewSectionReader(staged, 0, staged.Size())
	buf := hashBuffers.Get().(*[256 << 10]byte)
	defer hashBuffers.Put(buf)
	for {
		n, err := body.Read(buf[:])
		digest.Write(buf[:n])
		switch {
		case err == io.EOF:
			return "sha256:" + hex.EncodeToString(digest.Sum(nil)), nil
		case err != nil:
			return "", err
		case ctx.Err() != nil:
			return "", ctx.Err()
		}
	}
}

// link points a slot's stable name to its current output: what it was seen to be
// just now, nil if that is not known. Whoever moves the name last reads the pointer
// again afterwards, so that the name converges whatever the order.
func (s *Step) link(ctx context.Context, collection, tileID string, pointed *Pointed) (err error) {
	var last Pointed
	for {
		if pointed == nil || *pointed == last {
			if pointed, err = s.Ledger.Pointer(ctx, collection, tileID); err != nil || pointed == nil || *pointed == last {
				return err
			}
		}
		linkers := s.Stores.linkers()
		if len(linkers) == 0 {
			return nil
		}
		var errs []error
		for id, linker := range linkers {
			own, others := stableNames(*pointed, id)
			if own != "" {
				errs = append(errs, linker.Link(ctx, own, pointed.ObjectKey))
			}
			errs = append(errs, linker.Unlink(ctx, others...))
		}
		if err := errors.Join(errs...); err != nil {
			return storeProblem("link "+collection+"/"+tileID, err)
		}
		last = *pointed
	}
}

// linkers are the stores with stable names.
func (s Stores) linkers() map[string]storage.Linker {
	linkers := map[string]storage.Linker{}
	for id, store := range s {
		if linker, ok := store.(storage.Linker); ok {
			linkers[id] = linker
		}
	}
	return linkers
}

// stableNames are the name that leads to a slot's current output in a store, "" for
// none, and those that must not be there: what the slot held before may have been of
// another format, or in another store.
func stableNames(p Pointed, storeID string) (own string, others []string) {
	ext, _ := catalog.HasExtension(p.ObjectKey)
	for _, e := range catalog.Extensions() {
		name := catalog.StableName(p.Collection, p.TileID, e)
		if e == ext && storeID == p.StoreID {
			own = name
		} else {
			others = append(others, name)
		}
	}
	return own, others
}
