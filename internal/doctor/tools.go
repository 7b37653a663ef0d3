package doctor

import "os/exec"

// tool is a program of others that some use of catalogd takes.
type tool struct {
	name, use, pkg string
	// needed where nothing is set up; on a server, on a worker.
	local, server, worker, required bool
}

var toolbox = []tool{
	{name: "gdal_translate", use: "demo and tests cut rasters with it", pkg: "gdal-bin", local: true, required: true},
	{name: "gdal_create", use: "tests, and the README's example, make rasters with it", pkg: "gdal-bin", local: true},
	{name: "gdal_edit.py", use: "catalogd exec --tag writes tags with it", pkg: "gdal-bin", local: true, worker: true},
	{name: "psql", use: "for SQL as in the docs", pkg: "postgresql-client", local: true, server: true},
	{name: "curl", use: "for HTTP as in the docs", pkg: "curl", local: true},
}

func (e *exam) tools(server, worker bool) {
	for _, t := range toolbox {
		if !(t.local && !server && !worker || t.server && server || t.worker && worker) {
			continue
		}
		path, err := exec.LookPath(t.name)
		switch {
		case err == nil:
			e.ok(t.name, "%s", path)
		case t.required:
			e.say(t.name, Lacks, "not on PATH: "+t.use, "install "+t.pkg+" (on Debian: apt-get install "+t.pkg+")")
		default:
			e.say(t.name, Warn, "not on PATH: "+t.use, "install "+t.pkg+" where you want that")
		}
	}
}
