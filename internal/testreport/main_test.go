package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const (
		pass  = `{"Action":"run","Package":"p","Test":"T"}` + "\n" + `{"Action":"output","Package":"p","Test":"T","Output":"noise\n"}` + "\n" + `{"Action":"pass","Package":"p","Test":"T"}` + "\n"
		fail  = `{"Action":"output","Package":"p","Test":"F","Output":"why F failed\n"}` + "\n" + `{"Action":"fail","Package":"p","Test":"F"}` + "\n"
		skip  = `{"Action":"output","Package":"p","Test":"S","Output":"why S was skipped\n"}` + "\n" + `{"Action":"skip","Package":"p","Test":"S"}` + "\n"
		died  = `{"Action":"output","Package":"p","Test":"D","Output":"panic in D\n"}` + "\n"
		ok    = `{"Action":"pass","Package":"p","Elapsed":1.25}` + "\n"
		bad   = `{"Action":"fail","Package":"p","Elapsed":1}` + "\n"
		none  = `{"Action":"skip","Package":"without tests"}` + "\n"
		build = `{"Action":"build-output","ImportPath":"p [p.test]","Output":"no compile\n"}` + "\n" + `{"Action":"build-fail","ImportPath":"p [p.test]"}` + "\n" + `{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}` + "\n"
	)
	for name, c := range map[string]struct {
		in    string
		ok    bool
		wants []string
	}{
		"passed":      {pass + ok + none, true, []string{"ok    p 1.2s", "1 passed, 0 failed, 0 skipped in 1 packages"}},
		"failed":      {pass + fail + bad, false, []string{"why F failed", "FAIL  p", "1 passed, 1 failed"}},
		"skipped":     {pass + skip + ok, false, []string{"why S was skipped", "1 skipped"}},
		"died":        {pass + died + bad, false, []string{"panic in D", "FAIL  p"}},
		"not built":   {build, false, []string{"no compile", "FAIL  p"}},
		"nothing":     {"", false, nil},
		"other lines": {"exit status 1\n" + pass + ok, true, []string{"exit status 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			got, err := report(strings.NewReader(c.in), &out)
			if err != nil || got != c.ok {
				t.Errorf("%v, %v", got, err)
			}
			for _, want := range c.wants {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, &out)
				}
			}
			if strings.Contains(out.String(), "noise") {
				t.Errorf("output of what passed in\n%s", &out)
			}
		})
	}
}
