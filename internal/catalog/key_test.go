package catalog_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"catalogd/internal/catalog"

	"github.com/google/uuid"
)

// vectors is api/unit-key-vectors.json, which was computed without this code.
type vectors struct {
	Vectors []struct {
		Name         string    `json:"name"`
		Collection   string    `json:"collection"`
		TileID       string    `json:"tile_id"`
		IdentityJSON string    `json:"identity_json"`
		Canonical    string    `json:"canonical"`
		UnitKey      uuid.UUID `json:"unit_key"`
	} `json:"vectors"`
	Refused []struct {
		Name         string `json:"name"`
		IdentityJSON string `json:"identity_json"`
		Pointer      string `json:"pointer"`
		Reason       string `json:"reason"`
	} `json:"refused"`
}

func readVectors(t testing.TB) vectors {
	t.Helper()
	raw, err := os.ReadFile("../../api/unit-key-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Vectors) == 0 || len(v.Refused) == 0 {
		t.Fatal("no vectors")
	}
	return v
}

func TestPublishedVectors(t *testing.T) {
	v := readVectors(t)
	for _, vector := range v.Vectors {
		t.Run(vector.Name, func(t *testing.T) {
			unit, err := catalog.NewUnit(vector.Collection, vector.TileID, []byte(vector.IdentityJSON), "")
			if err != nil {
				t.Fatal(err)
			}
			if unit.Key != vector.UnitKey {
				t.Errorf("key %s, want %s", unit.Key, vector.UnitKey)
			}
			if canonical := `{"collection":"` + vector.Collection + `","identity":` + unit.Identity.String() + `,"tile_id":"` + vector.TileID + `"}`; canonical != vector.Canonical {
				t.Errorf("canonical %s, want %s", canonical, vector.Canonical)
			}
		})
	}
	for _, vector := range v.Refused {
		t.Run(vector.Name, func(t *testing.T) {
			_, err := catalog.ParseIdentity([]byte(vector.IdentityJSON))
			var e *catalog.Error
			if !errors.As(err, &e) || e.Code != catalog.CodeInvalidIdentity {
				t.Fatalf("not refused (%s): %v", vector.Reason, err)
			}
			if e.Field != vector.Pointer {
				t.Errorf("refused at %s, want %s: %s", e.Field, vector.Pointer, e.Message)
			}
		})
	}
}

// Computed with Python's hashlib over canonical text written by hand.
func TestNewUnitKey(t *testing.T) {
	for _, test := range []struct{ collection, tileID, identity, want string }{
		{"landcover", "t0001", `{"version":"1"}`, "35b9f766-c4a4-884d-9f0e-0bb4b2b9cb77"},
		{"landcover", "t0001", `{"version":"2026.1","scene":"S2B_33UXP"}`, "efea2293-59d7-8eed-a242-63f68728bc3f"},
		{"ndvi_10m", "33UXP/2026-08-04", `{"version":"2026.1","scene":"S2B_33UXP"}`, "df0c5f60-e1e8-883f-840a-78252439a7b3"},
		{"landcover-2", "t0001", `{"version":"1"}`, "83718cd7-dc87-8800-ab8e-ad502a46ca5c"},
	} {
		key, err := catalog.NewUnitKey(test.collection, test.tileID, mustIdentity(t, test.identity))
		if err != nil {
			t.Fatal(err)
		}
		if key.String() != test.want {
			t.Errorf("%s/%s %s: key %s, want %s", test.collection, test.tileID, test.identity, key, test.want)
		}
		if key.Version() != 8 || key.Variant() != uuid.RFC4122 {
			t.Errorf("%s: version %d, variant %s", key, key.Version(), key.Variant())
		}
	}
}

func TestNewUnitKeyRefuses(t *testing.T) {
	identity := mustIdentity(t, `{"version":"1"}`)
	for _, test := range []struct {
		collection, tileID string
		identity           catalog.Identity
		want               catalog.Code
	}{
		{"Landcover", "t0001", identity, catalog.CodeInvalidCollection},
		{`a","x":"`, "t0001", identity, catalog.CodeInvalidCollection},
		{"landcover", `t"0001`, identity, catalog.CodeInvalidTileID},
		{"landcover", "t0001", catalog.Identity{}, catalog.CodeInvalidIdentity},
	} {
		if key, err := catalog.NewUnitKey(test.collection, test.tileID, test.identity); !catalog.IsCode(err, test.want) || key != uuid.Nil {
			t.Errorf("%q %q %s: %s, %v; want %s", test.collection, test.tileID, test.identity, key, err, test.want)
		}
	}
}

func TestNewAttemptID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id, err := catalog.NewAttemptID()
		if err != nil {
			t.Fatal(err)
		}
		if id.Version() != 7 {
			t.Fatalf("%s is of version %d", id, id.Version())
		}
		name := catalog.FinalName("c", "t", uuid.Nil, id, "")
		if seen[name] {
			t.Fatalf("two attempts share the name %s", name)
		}
		seen[name] = true
	}
}

func TestNames(t *testing.T) {
	unit := uuid.MustParse("35b9f766-c4a4-884d-9f0e-0bb4b2b9cb77")
	attempt := uuid.MustParse("0198f3a2-7c41-7b3e-8d15-6a9c04e2f7b8")
	for _, test := range []struct{ got, want string }{
		{catalog.FinalName("landcover", "t0001", unit, attempt, ".tif"), "landcover/t0001.35b9f766c4a4.6a9c04e2f7b8.tif"},
		{catalog.FinalName("s2", "33UXP/2026-08-04", unit, attempt, ".tif"), "s2/33UXP/2026-08-04.35b9f766c4a4.6a9c04e2f7b8.tif"},
		{catalog.StableName("s2", "33UXP/2026-08-04", ".tif"), "s2/33UXP/2026-08-04.tif"},
		{catalog.StagingName(attempt, ".tif"), ".staging/0198f3a2-7c41-7b3e-8d15-6a9c04e2f7b8.tif"},
	} {
		if test.got != test.want {
			t.Errorf("name %s, want %s", test.got, test.want)
		}
	}
}

func TestParseStagingName(t *testing.T) {
	const attempt = "0198f3a2-7c41-7b3e-8d15-6a9c04e2f7b8"
	for _, after := range []string{"", ".tif", ".tif.aux.xml", ".tif.ovr.tmp", ".upload-81fd.tmp", ".copy.tif", ".copy-3f.tmp", "~"} {
		got, ok := catalog.ParseStagingName(".staging/" + attempt + after)
		if !ok || got.String() != attempt {
			t.Errorf("%q after the attempt: %s, %t", after, got, ok)
		}
	}
	for _, key := range []string{
		"",
		".staging/",
		".staging/in/" + attempt + ".tif",
		".staging/in/t0001.tif",
		".staging/" + attempt[:35],
		".staging/" + strings.ToUpper(attempt) + ".tif",
		".staging/{" + attempt + "}.tif",
		".staging/urn:uuid:" + attempt + ".tif",
		".staging/" + strings.ReplaceAll(attempt, "-", "") + ".tif",
		".staging/" + strings.ReplaceAll(attempt, "-", "_") + ".tif",
		".staging/x" + attempt + ".tif",
		"/.staging/" + attempt + ".tif",
		"landcover/" + attempt + ".tif",
		attempt + ".tif",
	} {
		if got, ok := catalog.ParseStagingName(key); ok || got != uuid.Nil {
			t.Errorf("%q: taken for a file of attempt %s", key, got)
		}
	}
}
