package ociimage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const deb822 = `# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
# inside
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEX
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: https://third.example/apt
Suites: bookworm
Components: stable

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
`

const oneLine = `# old style
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg trusted=yes] http://old.example/ubuntu jammy main universe # trailing
deb-src http://old.example/ubuntu jammy main
deb http://old.example/ubuntu jammy-updates main
deb cdrom:[Debian] bookworm main
deb broken
`

func TestSources(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sources.list.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"sources.list": oneLine, "sources.list.d/debian.sources": deb822, "sources.list.d/x.list.save": "deb http://saved.example x main"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	all, err := readSources(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := pick(all, "bookworm")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range d.withBackports().sources {
		got = append(got, s.line(strings.SplitN(s.signedBy, "\n", 2)[0]))
	}
	want := []string{
		"deb [signed-by=/usr/share/keyrings/debian.gpg] http://mirror.example/debian bookworm main contrib",
		"deb [signed-by=/usr/share/keyrings/debian.gpg] http://mirror.example/debian bookworm-updates main contrib",
		"deb [signed-by=-----BEGIN PGP PUBLIC KEY BLOCK-----] http://mirror.example/security bookworm-security main",
		"deb [signed-by=/usr/share/keyrings/debian.gpg] http://mirror.example/debian bookworm-backports main contrib",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("sources:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !strings.Contains(d.sources[2].signedBy, "BEGIN PGP") {
		t.Errorf("the key in the file is lost: %q", d.sources[2].signedBy)
	}
	u, err := pick(all, "jammy")
	if err != nil || len(u.sources) != 2 || !u.sources[0].trusted || u.sources[0].signedBy != "/usr/share/keyrings/x.gpg" {
		t.Errorf("jammy: %+v, %v", u, err)
	}
	split := []source{
		{uri: "http://archive.example/ubuntu", suite: "noble", components: []string{"main", "restricted"}},
		{uri: "http://archive.example/ubuntu", suite: "noble", components: []string{"universe"}},
		{uri: "http://archive.example/ubuntu", suite: "noble-updates", components: []string{"universe"}},
		{uri: "http://ppa.example", suite: "noble", components: []string{"universe"}},
	}
	if d, err := pick(split, "noble"); err != nil || len(d.sources) != 3 {
		t.Errorf("components in lines of their own: %+v, %v", d, err)
	}
	if _, err := pick(all, "fedora"); err == nil {
		t.Error("a suite that nobody offers was found")
	}
}

func TestCodename(t *testing.T) {
	for text, want := range map[string]string{
		"ID=debian\nVERSION_CODENAME=bookworm\n":                                        "bookworm",
		"ID=linuxmint\nVERSION_CODENAME=vera\nUBUNTU_CODENAME=\"jammy\"\nNAME='Mint'\n": "jammy",
		"ID=fedora\n": "",
	} {
		if got := codename(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestRecipeErrors(t *testing.T) {
	for text, says := range map[string]string{
		"packages: [a]\nsurprise: 1\n":                      `:2:1: unknown field "surprise"`,
		"pakages: [a]\n":                                    "did you mean packages?",
		"packages: [b, \"a >= \"]\n":                        `:1:15: packages[1]: "a >= " is not a package; write NAME`,
		"files: {relative: {from: x}}\n":                    "write /relative",
		"files: {/a/../b: {from: x}}\n":                     "write /b",
		"files: {/a: {mode: 0644}}\n":                       "files[/a]: has no file; write from: FILE",
		"files: {/a: {from: x}}\n":                          "/x: there is no such file; make it",
		"files: {/a: {from: image.yaml, mode: \"0640\"}}\n": "take the quotes away: 0640",
		"base: ../nix\n":                                    "nix has no image.yaml; name the folder of a recipe",
		"packages: {a: 1}\n":                                ":1:11: packages: is a mapping where a list",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, RecipeFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadRecipe(dir); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), RecipeFile) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ReadRecipe(t.TempDir()); err == nil {
		t.Error("a folder without a recipe has one")
	}
}
