package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mount is a line of /proc/self/mountinfo; see proc(5).
type mount struct {
	point, fsType, source string
	// options of the mount and of the filesystem.
	options []string
}

// mounts are those that matter to a directory.
type mounts struct {
	path  string // without symbolic links
	of    mount
	below []mount
}

func mountsOf(path string) (mounts, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mounts{}, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return mounts{}, err
	}
	return parseMounts(string(text), path)
}

func parseMounts(text, path string) (mounts, error) {
	found := mounts{path: path}
	for line := range strings.Lines(text) {
		// 36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 3 {
			continue
		}
		m := mount{point: unescape(l[4]), fsType: r[0], source: unescape(r[1])}
		m.options = append(strings.Split(l[5], ","), strings.Split(r[2], ",")...)
		switch {
		case m.point == path, m.point == "/", strings.HasPrefix(path, m.point+"/"):
			if len(m.point) >= len(found.of.point) { // the last is on top
				found.of = m
			}
		case strings.HasPrefix(m.point, path+"/"):
			found.below = append(found.below, m)
		}
	}
	if found.of.point == "" {
		return found, fmt.Errorf("/proc/self/mountinfo has no mount of %s", path)
	}
	return found, nil
}

// unescape undoes the octal escapes of blanks in mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func (m mount) has(option string) bool { return slices.Contains(m.options, option) }

// nfsAdvice says what is wrong with options of an NFS mount. The kernel shows those
// only that are not its defaults, and positive as pos.
func (m mount) nfsAdvice() (found, remedy []string) {
	for _, option := range []string{"soft", "softerr"} {
		if m.has(option) {
			found = append(found, option+" (a time-out is an error in the middle of a write)")
			remedy = append(remedy, "hard")
		}
	}
	if m.has("async") {
		found = append(found, "async")
		remedy = append(remedy, "no async")
	}
	if m.has("nolock") || m.has("local_lock=all") || m.has("local_lock=posix") {
		found = append(found, "nolock (locks, as SQLite's for GeoPackages, hold on one machine only)")
		remedy = append(remedy, "lock")
	}
	if !slices.ContainsFunc([]string{"lookupcache=pos", "lookupcache=positive", "lookupcache=none"}, m.has) {
		found = append(found, "no lookupcache=positive (a fresh object may be taken for missing)")
		remedy = append(remedy, "lookupcache=positive")
	}
	return found, remedy
}

func (m mount) judge() (found string, status Status, remedy string) {
	found = fmt.Sprintf("%s, %s on %s", m.fsType, m.source, m.point)
	switch {
	case m.has("ro"):
		return found + ", read-only", Lacks, "mount it for writing"
	case m.fsType == "nfs" || m.fsType == "nfs4":
		if bad, remedy := m.nfsAdvice(); len(bad) > 0 {
			return found + ": " + strings.Join(bad, ", "), Warn,
				"mount it with " + strings.Join(remedy, ",") + ", and see that the export says sync: docs/operations.md#nfs"
		}
		return found + "; see that the export says sync", OK, ""
	case m.fsType == "tmpfs" || m.fsType == "ramfs":
		return found + ": in memory, and gone with it", Warn, "put the store on a disk"
	case m.fsType == "overlay":
		return found + ": a container's own layer, gone with it", Warn, "mount a volume for the store"
	case strings.HasPrefix(m.fsType, "fuse") || slices.Contains([]string{"cifs", "smb3", "9p", "vfat", "exfat", "ntfs3"}, m.fsType):
		return found + ": catalogd is not tested there", Warn, "prefer a local filesystem (ext4, XFS, …) or NFS"
	}
	return found, OK, ""
}
