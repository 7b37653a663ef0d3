package pgcluster

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MinVersion is the oldest major version of PostgreSQL that catalogd works with.
const MinVersion = 14

// Installation is a PostgreSQL server found on this machine.
type Installation struct {
	// BinDir holds postgres and initdb.
	BinDir string
	// Version is the major version.
	Version int
}

var versionNumber = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// Find gives the newest PostgreSQL on this machine that has PostGIS: of those
// under /usr/lib/postgresql (Debian), /usr/pgsql-NN (RPM) and where pg_config
// points to. The error says what to install.
func Find(ctx context.Context) (Installation, error) {
	var dirs []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"} {
		found, _ := filepath.Glob(pattern)
		dirs = append(dirs, found...)
	}
	if dir := pgConfig(ctx, "pg_config", "--bindir"); dir != "" && !slices.Contains(dirs, dir) {
		dirs = append(dirs, dir)
	}
	var found []Installation
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
			continue // a client's directory only
		}
		out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
		if err != nil {
			continue
		}
		if m := versionNumber.FindSubmatch(out); m != nil {
			version, _ := strconv.Atoi(string(m[1]))
			found = append(found, Installation{BinDir: dir, Version: version})
		}
	}
	return choose(found, func(i Installation) bool { return i.hasPostGIS(ctx) })
}

func choose(found []Installation, hasPostGIS func(Installation) bool) (Installation, error) {
	const apt = "on Debian and Ubuntu: apt-get install postgresql postgresql-postgis, or scripts/deps.sh"
	if len(found) == 0 {
		return Installation{}, fmt.Errorf("no PostgreSQL server is installed: %s", apt)
	}
	slices.SortFunc(found, func(a, b Installation) int { return cmp.Compare(b.Version, a.Version) })
	newest := found[0]
	if newest.Version < MinVersion {
		return Installation{}, fmt.Errorf("PostgreSQL %d in %s is too old, catalogd needs %d or later: %s", newest.Version, newest.BinDir, MinVersion, apt)
	}
	for _, i := range found {
		if i.Version >= MinVersion && hasPostGIS(i) {
			return i, nil
		}
	}
	return Installation{}, fmt.Errorf("PostgreSQL %d in %s has no PostGIS: on Debian and Ubuntu: apt-get install postgresql-%d-postgis-3 postgresql-%[1]d-postgis-3-scripts, or scripts/deps.sh",
		newest.Version, newest.BinDir, newest.Version)
}

// hasPostGIS is true also where nothing says where extensions are: then CREATE
// EXTENSION will tell.
func (i Installation) hasPostGIS(ctx context.Context) bool {
	share := pgConfig(ctx, filepath.Join(i.BinDir, "pg_config"), "--sharedir")
	if share == "" {
		share = fmt.Sprintf("/usr/share/postgresql/%d", i.Version)
		if _, err := os.Stat(share); err != nil {
			return true
		}
	}
	_, err := os.Stat(filepath.Join(share, "extension", "postgis.control"))
	return err == nil
}

func pgConfig(ctx context.Context, program, option string) string {
	out, err := exec.CommandContext(ctx, program, option).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
