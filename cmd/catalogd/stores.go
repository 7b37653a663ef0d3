package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"catalogd/internal/catalog"
	"catalogd/internal/httpapi"
	"catalogd/internal/postgres"
	"catalogd/internal/storage"
	"catalogd/internal/storage/posix"
	"catalogd/internal/storage/s3"
	"catalogd/internal/upsert"
)

// storeFlags say where outputs live.
type storeFlags struct {
	Store []string `sep:"none" placeholder:"[NAME=]ROOT" env:"CATALOGD_STORE" help:"Where outputs live: a directory, file:///…, or s3://BUCKET/PREFIX?endpoint=URL&region=…. Repeat for more, with names for collections to go by (in the environment CATALOGD_STORE_NAME); the first is that of collections which name none."`
}

// storeSetting is one store, by the name that collections use and its URL: file:///…,
// or s3://… with its settings.
type storeSetting struct{ Name, URL string }

// firstStore is the name of a store that was given none.
const firstStore = "default"

const errNoStore = usageError("no store: set --store or CATALOGD_STORE to a directory, file:///… or s3://BUCKET/PREFIX")

var (
	namedStore = regexp.MustCompile(`^([a-z0-9][a-z0-9_-]{0,63})=(.+)$`)
	storeEnv   = regexp.MustCompile(`^CATALOGD_STORE_([A-Z0-9][A-Z0-9_]{0,63})=(.*)$`)
)

// settings are the stores that the flags and the environment name, each once.
func (f storeFlags) settings() ([]storeSetting, error) {
	var all []storeSetting
	for _, text := range f.Store {
		one := storeSetting{firstStore, text}
		if m := namedStore.FindStringSubmatch(text); m != nil {
			one = storeSetting{m[1], m[2]}
		}
		all = append(all, one)
	}
	var more []storeSetting
	for _, setting := range os.Environ() {
		if m := storeEnv.FindStringSubmatch(setting); m != nil && m[2] != "" {
			more = append(more, storeSetting{strings.ToLower(m[1]), m[2]})
		}
	}
	slices.SortFunc(more, func(a, b storeSetting) int { return strings.Compare(a.Name, b.Name) })
	all = append(all, more...)
	if len(all) == 0 {
		return nil, errNoStore
	}
	for i := range all {
		u, err := storeURL(all[i].URL)
		if err != nil {
			return nil, err
		}
		all[i].URL = u
		for _, before := range all[:i] {
			switch {
			case before.Name == all[i].Name:
				return nil, usageError(fmt.Sprintf("two stores are called %s: give each a name of its own, --store NAME=ROOT", before.Name))
			case overlap(rootOf(before.URL), rootOf(all[i].URL)):
				return nil, usageError(fmt.Sprintf("stores %s and %s overlap: give each a directory, or a prefix, of its own", before.Name, all[i].Name))
			}
		}
	}
	return all, nil
}

// storeURL is a root as a URL.
func storeURL(root string) (string, error) {
	if strings.HasPrefix(root, "s3://") {
		if _, err := s3.FromURL(root); err != nil {
			return "", usageError(err.Error())
		}
		return root, nil
	}
	if path, ok := strings.CutPrefix(root, "file://"); ok {
		if unescaped, err := url.PathUnescape(path); err == nil {
			path = unescaped
		}
		root = path
	} else if strings.Contains(root, "://") {
		return "", usageError(fmt.Sprintf("store %s: only directories, file:///… and s3://… can be stores", root))
	}
	path, err := filepath.Abs(root)
	return (&url.URL{Scheme: "file", Path: path}).String(), err
}

// rootOf is what the catalogue knows a store by: its URL with what says where it is,
// and without what says how to get there.
func rootOf(storeURL string) string {
	if !strings.HasPrefix(storeURL, "s3://") {
		return storeURL
	}
	cfg, err := s3.FromURL(storeURL)
	if err != nil {
		return storeURL
	}
	root := strings.TrimRight(cfg.URL, "/")
	if cfg.Endpoint != "" {
		root += "?endpoint=" + url.QueryEscape(cfg.Endpoint)
	}
	return root
}

// overlap tells whether of two roots one lies within the other, or is it.
func overlap(a, b string) bool {
	pathA, serverA, _ := strings.Cut(a, "?")
	pathB, serverB, _ := strings.Cut(b, "?")
	pathA, pathB = strings.TrimRight(pathA, "/")+"/", strings.TrimRight(pathB, "/")+"/"
	return serverA == serverB && (strings.HasPrefix(pathA, pathB) || strings.HasPrefix(pathB, pathA))
}

// openStores opens every store and records it.
func (c *serveCmd) openStores(ctx context.Context, db *postgres.DB, log *slog.Logger) (*stores, error) {
	settings, err := c.settings()
	if err != nil {
		return nil, err
	}
	known, err := db.Stores(ctx)
	if err != nil {
		return nil, err
	}
	out := &stores{byID: upsert.Stores{}}
	for _, setting := range settings {
		store, info, err := c.openStore(ctx, setting, known, log)
		if err != nil {
			return nil, fmt.Errorf("store %s: %w", setting.Name, err)
		}
		href := strings.TrimSuffix(c.PublicURL, "/")
		if href == "" {
			href = "http://" + c.Listen
		}
		if out.byID[info.ID] != nil {
			return nil, fmt.Errorf("store %s is another one too, by its id %s: one of them is a copy, or the same root under another name", setting.Name, info.ID)
		}
		err = db.UseStore(ctx, postgres.Store{ID: info.ID, Root: rootOf(setting.URL), Location: info.Location, Href: href + "/data/", Name: setting.Name})
		if err != nil {
			return nil, fmt.Errorf("store %s: %w", setting.Name, err)
		}
		out.byID[info.ID] = store
		out.infos = append(out.infos, info)
	}
	for _, other := range known {
		if out.byID[other.ID] == nil {
			log.Warn("the catalogue has a store that this server is not told of: what is there is unavailable here", "store", other.ID, "root", other.Root)
		}
	}
	return out, nil
}

// openStore opens one. The catalogue's first store is made by itself. After that a root
// without a sentinel is most likely a volume that is not mounted, or a name mistyped.
func (c *serveCmd) openStore(ctx context.Context, setting storeSetting, known []postgres.Store, log *slog.Logger) (storage.Store, httpapi.StoreInfo, error) {
	root := rootOf(setting.URL)
	here := ""
	for _, other := range known {
		if other.Root == root {
			here = other.ID
		}
	}
	init := len(known) == 0 || here == "" && c.InitStore
	store, capabilities, err := openRoot(ctx, setting.URL, init)
	if errors.Is(err, storage.ErrSentinel) && !init && here == "" {
		err = fmt.Errorf("%w (the catalogue has a store already, and not here: for one more, add --init-store)", err)
	}
	if err != nil {
		return nil, httpapi.StoreInfo{}, err
	}
	for _, other := range known {
		if other.ID != store.ID() && other.Root != root && overlap(other.Root, root) {
			return nil, httpapi.StoreInfo{}, fmt.Errorf("%s overlaps store %s of this catalogue, at %s: give it a directory, or a prefix, of its own", root, other.ID, other.Root)
		}
	}
	// Staging is there before the first task asks; what stands in the way is told
	// now, and again to every task.
	if err := store.PrepareStaging(ctx, storage.IncomingPrefix+"file", "collection/file"); err != nil {
		log.Warn("nothing can be staged", "store", setting.Name, "error", err)
	}
	info := httpapi.StoreInfo{Name: setting.Name, ID: store.ID(), Root: root, Location: strings.TrimSuffix(store.Location("x"), "x")}
	if capabilities != nil {
		info.Capabilities = capabilities.Map()
		log.Info("store", "name", setting.Name, "root", root, "can", capabilities.String())
		if !capabilities.Lifecycle {
			log.Warn("what is left in staging while no catalogd runs stays: the store takes no lifecycle rules, or does not show them", "store", setting.Name, "error", capabilities.LifecycleError)
		}
	} else {
		log.Info("store", "name", setting.Name, "root", root)
	}
	return store, info, nil
}

// openRoot opens the store at a URL; capabilities are an object store's.
func openRoot(ctx context.Context, storeURL string, init bool) (storage.Store, *s3.Capabilities, error) {
	if !strings.HasPrefix(storeURL, "s3://") {
		u, err := url.Parse(storeURL)
		if err != nil {
			return nil, nil, err
		}
		store, err := posix.Open(ctx, u.Path, posix.Options{Init: init})
		return store, nil, err
	}
	cfg, err := s3.FromURL(storeURL)
	if err != nil {
		return nil, nil, err
	}
	cfg.Init = init
	store, err := s3.Open(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	capabilities := store.Capabilities()
	return store, &capabilities, nil
}

// stores are those of a server, as its readers see them.
type stores struct {
	byID  upsert.Stores
	infos []httpapi.StoreInfo
}

// List implements httpapi.Stores.
func (s *stores) List() []httpapi.StoreInfo { return s.infos }

// Open implements httpapi.Stores.
func (s *stores) Open(ctx context.Context, storeID, key string) (storage.Reader, catalog.Object, error) {
	store, err := s.byID.Find(storeID)
	if err != nil {
		return nil, catalog.Object{}, err
	}
	return store.Open(ctx, key)
}

// Redirect implements httpapi.Stores.
func (s *stores) Redirect(ctx context.Context, storeID, key, method string, expires time.Duration) (string, error) {
	store, err := s.byID.Find(storeID)
	if err != nil {
		return "", err
	}
	presigner, ok := store.(storage.Presigner)
	if !ok || !presigner.Redirects() {
		return "", nil
	}
	req, err := presigner.PresignGet(ctx, method, key, expires)
	if err != nil {
		return "", err
	}
	return req.URL.String(), nil
}

// ready tells whether any store can be reached: what is in the others is refused piece by
// piece.
func (s *stores) ready(ctx context.Context) error {
	var errs []error
	for id, store := range s.byID {
		err := store.Sentinel(ctx)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("store %s: %w", id, err))
	}
	return errors.Join(errs...)
}
