//go:build cgo

package probe

/*
#include <stdlib.h>
#include <cpl_conv.h>
#include <cpl_string.h>
#include <ogr_srs_api.h>
*/
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"catalogd/internal/writer/wire"
)

// Confine takes from every thread of this process, for good, what it has no more use for
// once it is set up: all files but those of PROJ's and GDAL's data directories, which
// both open as they need them (Landlock); and all system calls but those of a program
// that computes, reads and writes what it has open, and starts threads (seccomp): none
// that connects, executes, forks, traces, signals others, writes to a file or makes
// memory executable. A call that is denied fails, and so does what GDAL wanted with it.
//
// It takes what the kernel offers, and says what that was; an error is the kernel's that
// offers it and then does not. After Setup.
func Confine() (wire.Confinement, error) {
	var c wire.Confinement
	if abi := landlockABI(); abi > 0 {
		config := landlock.V11
		// Signals among our own threads are out of its scope in some kernels; seccomp
		// denies those to others.
		config.Scoped = 0
		dirs := landlock.PathAccess(landlock.AccessFSSet(unix.LANDLOCK_ACCESS_FS_READ_FILE|unix.LANDLOCK_ACCESS_FS_READ_DIR), dataDirs()...)
		if err := config.BestEffort().Restrict(dirs); err != nil {
			return c, fmt.Errorf("restrict files: %w", err)
		}
		c.Landlock = abi
	}
	var err error
	if c.Seccomp, err = filterSystemCalls(); err != nil {
		return c, fmt.Errorf("restrict system calls: %w", err)
	}
	return c, nil
}

// landlockABI is the version of Landlock's interface; 0 where there is none.
func landlockABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// dataDirs are those of the directories where PROJ and GDAL look for their data that
// exist.
func dataDirs() []string {
	var dirs []string
	paths := C.OSRGetPROJSearchPaths()
	for i := range int(C.CSLCount(paths)) {
		dirs = append(dirs, C.GoString(C.CSLGetField(paths, C.int(i))))
	}
	C.CSLDestroy(paths)
	class, name := C.CString("gdal"), C.CString("gdalvrt.xsd")
	if found := C.CPLFindFile(class, name); found != nil {
		dirs = append(dirs, filepath.Dir(C.GoString(found)))
	}
	C.free(unsafe.Pointer(class))
	C.free(unsafe.Pointer(name))
	return slices.DeleteFunc(dirs, func(dir string) bool {
		info, err := os.Stat(dir)
		return err != nil || !info.IsDir() || !filepath.IsAbs(dir)
	})
}
