package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// What deploy/ and compose.yaml name is there: commands, flags, variables, files,
// the user's directories.

func fromRoot(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", name))
	ok(t, err)
	return string(text)
}

// help of a command.
func help(t *testing.T, command ...string) string {
	t.Helper()
	var out bytes.Buffer
	if code := run(t.Context(), append(command, "--help"), streams{&out, &out}); code != 0 {
		t.Fatalf("catalogd %v --help: exit code %d", command, code)
	}
	return out.String()
}

var (
	variable = regexp.MustCompile(`\bCATALOGD_\w+`)
	flagName = regexp.MustCompile(`--[a-z][a-z-]*`)
)

// takes fails unless the command has every variable and flag that text names.
func takes(t *testing.T, where, text string, command ...string) {
	t.Helper()
	said := help(t, command...)
	for _, name := range variable.FindAllString(text, -1) {
		if !strings.Contains(said, "$"+name+")") && !strings.Contains(said, "$"+name+",") && !strings.Contains(said, "($"+name) {
			t.Errorf("%s: catalogd %v takes no %s", where, command, name)
		}
	}
	for _, name := range flagName.FindAllString(text, -1) {
		if !regexp.MustCompile(regexp.QuoteMeta(name) + `\b`).MatchString(said) {
			t.Errorf("%s: catalogd %v has no %s", where, command, name)
		}
	}
}

func TestDeployUnit(t *testing.T) {
	unit := fromRoot(t, "deploy/catalogd.service")
	environment := fromRoot(t, "deploy/catalogd.env")
	settings := map[string][]string{}
	section := ""
	for line := range strings.Lines(unit) {
		line = strings.TrimSpace(line)
		name, value, isSetting := strings.Cut(line, "=")
		switch {
		case line == "", strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = line
		case !isSetting || section == "":
			t.Errorf("not a setting: %s", line)
		default:
			settings[name] = append(settings[name], value)
		}
	}
	one := func(name string) string {
		if len(settings[name]) != 1 {
			t.Fatalf("%s: %q", name, settings[name])
		}
		return settings[name][0]
	}
	program, args, _ := strings.Cut(one("ExecStart"), " ")
	if filepath.Base(program) != "catalogd" {
		t.Errorf("it starts %s", program)
	}
	command, flags, _ := strings.Cut(args, " ")
	takes(t, "catalogd.service", flags+strings.Join(settings["Environment"], "\n"), command)
	takes(t, "catalogd.env", environment, command)
	for _, credential := range settings["LoadCredential"] {
		name, file, _ := strings.Cut(credential, ":")
		if !strings.Contains(unit, "%d/"+name) || !strings.HasPrefix(file, "/etc/catalogd/") {
			t.Errorf("the credential %s is not used", credential)
		}
	}
	store := regexp.MustCompile(`(?m)^CATALOGD_STORE=(.*)$`).FindStringSubmatch(environment)
	if store == nil || one("ReadWritePaths") != store[1] || one("RequiresMountsFor") != store[1] {
		t.Errorf("the store is %q, the unit has %q and %q", store, one("ReadWritePaths"), one("RequiresMountsFor"))
	}
	// A probe confines itself with these.
	allowed := strings.Join(settings["SystemCallFilter"], " ")
	for _, call := range []string{"seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"} {
		if !slices.Contains(strings.Fields(allowed), call) {
			t.Errorf("SystemCallFilter does not allow %s", call)
		}
	}
	if one("KillMode") != "mixed" {
		t.Error("SIGTERM would end the probes of steps under way")
	}
}

func TestDeployCompose(t *testing.T) {
	var compose struct {
		Services map[string]struct {
			Image       string
			Build       struct{ Context, Dockerfile string }
			Command     []string
			Environment map[string]string
			Volumes     []string
			Healthcheck struct {
				Test        []string
				Interval    string
				Retries     int
				StartPeriod string `yaml:"start_period"`
			}
			DependsOn map[string]struct{ Condition string } `yaml:"depends_on"`
			Ports     []string
			Restart   string
			ShmSize   string `yaml:"shm_size"`
			Grace     string `yaml:"stop_grace_period"`
		}
		Name    string
		Volumes map[string]any
	}
	text := fromRoot(t, "compose.yaml")
	decoder := yaml.NewDecoder(strings.NewReader(text))
	decoder.KnownFields(true)
	ok(t, decoder.Decode(&compose))
	used := map[string]bool{}
	for name, service := range compose.Services {
		for other := range service.DependsOn {
			if _, there := compose.Services[other]; !there {
				t.Errorf("%s depends on %s, which is not there", name, other)
			}
		}
		for _, volume := range service.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if _, there := compose.Volumes[source]; !there {
				t.Errorf("%s mounts %s, which is not there", name, source)
			}
			used[source] = true
		}
		if service.Build.Dockerfile == "" {
			continue
		}
		fromRoot(t, service.Build.Dockerfile)
		var environment []string
		for variable, value := range service.Environment {
			environment = append(environment, variable+"="+value)
		}
		command := service.Command
		if command[0] == "migrate" {
			takes(t, name, strings.Join(environment, "\n"), command...)
		} else {
			takes(t, name, strings.Join(append(environment, command[1:]...), "\n"), command[0])
		}
		if test := service.Healthcheck.Test; len(test) > 1 && !strings.Contains(fromRoot(t, service.Build.Dockerfile), test[1]) {
			t.Errorf("%s's health is asked by %s, which the image lacks", name, test[1])
		}
	}
	if len(compose.Services) != 3 || len(used) != len(compose.Volumes) {
		t.Errorf("%d services, volumes %v of which %v are used", len(compose.Services), compose.Volumes, used)
	}
	server := compose.Services["catalogd"]
	image := fromRoot(t, server.Build.Dockerfile)
	for _, volume := range server.Volumes { // else it would be root's
		if _, path, _ := strings.Cut(volume, ":"); !regexp.MustCompile(`install -d -o catalogd .*` + regexp.QuoteMeta(path) + `\b`).MatchString(image) {
			t.Errorf("the image makes no %s for its user", path)
		}
	}
}

func TestDeployContainerfiles(t *testing.T) {
	instructions := []string{"FROM", "RUN", "COPY", "WORKDIR", "ARG", "USER", "ENV", "EXPOSE", "ENTRYPOINT", "CMD"}
	for name, command := range map[string]string{"server": "serve", "worker": "get"} {
		file := "deploy/Containerfile." + name
		text := fromRoot(t, file)
		fromRoot(t, file+".dockerignore")
		stages := map[string]bool{"scratch": true}
		last := ""
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if len(fields) == 0 || strings.HasPrefix(line, "#") {
				continue
			}
			last = fields[0]
			switch fields[0] {
			case "FROM":
				if len(fields) == 4 && fields[2] == "AS" {
					stages[fields[3]] = true
				}
			case "COPY":
				if from, isStage := strings.CutPrefix(fields[1], "--from="); isStage && !stages[from] {
					t.Errorf("%s: no stage %s before %s", file, from, line)
				}
			case "ENV":
				takes(t, file, line, command)
			case "ENTRYPOINT":
				if !strings.Contains(line, "catalogd\"]") {
					t.Errorf("%s: %s", file, line)
				}
			}
			if !slices.Contains(instructions, fields[0]) {
				t.Errorf("%s: what is %s?", file, line)
			}
		}
		final := text[strings.LastIndex(text, "FROM "):]
		if !regexp.MustCompile(`(?m)^USER [1-9]\d*$`).MatchString(final) {
			t.Errorf("%s runs as root", file)
		}
		if name == "server" && last != "CMD" {
			t.Errorf("%s ends with %s", file, last)
		}
		// The image that builds has the Go that the module asks for.
		asked := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(fromRoot(t, "go.mod"))[1]
		if !strings.Contains(text, "FROM golang:"+asked+"-bookworm AS build") {
			t.Errorf("%s does not build with Go %s", file, asked)
		}
	}
	// What is run there is a target of make.
	if !strings.Contains(fromRoot(t, "Makefile"), "\nbuild: ##") {
		t.Error("there is no make build")
	}
}
