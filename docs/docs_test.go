// Package docs_test holds the hand-written references against the types that
// they describe.
package docs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/lab"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// keys are the YAML keys of a struct, those of plain structs in it with a dot.
func keys(t reflect.Type, prefix string) (out []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Struct && f.Type.PkgPath() != "net/netip" {
			out = append(out, keys(f.Type, prefix+name+".")...)
		} else {
			out = append(out, prefix+name)
		}
	}
	return out
}

// TestConfigurationIsComplete: every key has its row, in the chapter of its role.
func TestConfigurationIsComplete(t *testing.T) {
	text := read(t, "configuration.md")
	_, text, _ = strings.Cut(text, "\n## server\n")
	server, rest, _ := strings.Cut(text, "\n## node\n")
	node, uplinks, _ := strings.Cut(rest, "\n### uplinks\n")
	for _, c := range []struct {
		of      any
		chapter string
	}{{config.Server{}, server}, {config.Node{}, node}, {onpath.Uplink{}, uplinks}} {
		for _, k := range keys(reflect.TypeOf(c.of), "") {
			if !regexp.MustCompile("(?m)^\\|[^|]*`" + regexp.QuoteMeta(k) + "`").MatchString(c.chapter) {
				t.Errorf("%T: key %s has no row", c.of, k)
			}
		}
	}
	for _, s := range []string{config.DefaultPath, config.DefaultSocket, config.DefaultServerDir, config.DefaultNodeDir, strconv.Itoa(onpath.DefaultTunnelPort)} {
		if !strings.Contains(read(t, "configuration.md"), s) {
			t.Errorf("the default %s is not there", s)
		}
	}
}

// blocks are the YAML examples of a page, each in a file of its own.
func blocks(t *testing.T, page string) (files []string) {
	t.Helper()
	for i, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(read(t, page), -1) {
		f := filepath.Join(t.TempDir(), strconv.Itoa(i)+".yaml")
		if err := os.WriteFile(f, []byte(m[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		t.Fatalf("%s shows no file", page)
	}
	return files
}

func TestConfigurationExamples(t *testing.T) {
	files := append(blocks(t, "configuration.md"), "../examples/two-machines/edge.yaml", "../examples/two-machines/worker.yaml")
	for _, f := range files {
		c, err := config.Load(f)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		c.Node.TokenFile = "" // there is none where this test runs
		if err := c.Server.Complete(); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		if err := c.Node.Complete("machine"); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// TestExamplesAreTaken: an object that a page shows is one that onpath apply takes. Files
// that it names need not be there.
func TestExamplesAreTaken(t *testing.T) {
	objects := 0
	for _, page := range pages(t) {
		for _, m := range regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)```").FindAllStringSubmatch(read(t, page), -1) {
			text := strings.ReplaceAll("\n"+m[2], "\n"+m[1], "\n") // an item of a list is indented
			if !strings.Contains(text, "apiVersion:") {
				continue
			}
			docs, err := manifest.Parse([]byte(text), page, t.TempDir())
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v\n%s", err, text)
			}
			for _, d := range docs {
				objects++
				if err := d.Object.Validate(); err != nil {
					t.Errorf("%s: %v\n%s", page, err, text)
				}
			}
		}
	}
	if objects < 10 {
		t.Errorf("%d objects are shown, must be 10 at least", objects)
	}
}

func TestLabExamples(t *testing.T) {
	for _, f := range blocks(t, "lab.md") {
		if _, err := lab.ParseFile(f); err != nil {
			t.Error(err)
		}
	}
}

// TestLinks: what pages refer to exists.
func TestLinks(t *testing.T) {
	for _, page := range append(pages(t), "../README.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../SECURITY.md") {
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`).FindAllStringSubmatch(read(t, page), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

func pages(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestPagesAreFound: the README and the index of docs/ link every page.
func TestPagesAreFound(t *testing.T) {
	readme, index := read(t, "../README.md"), read(t, "README.md")
	for _, page := range pages(t) {
		if !strings.Contains(readme, "(docs/"+page+")") {
			t.Errorf("README.md does not name docs/%s", page)
		}
		if page != "README.md" && !strings.Contains(index, "("+page+")") {
			t.Errorf("docs/README.md does not name %s", page)
		}
	}
}

// TestParagraphsAreShort: a paragraph of a page, or item of a list, has 120 words at
// most; tables and code apart.
func TestParagraphsAreShort(t *testing.T) {
	code := regexp.MustCompile("(?s)```.*?```")
	for _, page := range append(pages(t), "../README.md", "../ARCHITECTURE.md") {
		for _, p := range regexp.MustCompile(`\n\s*\n|\n(?:- |\d+\. )`).Split(code.ReplaceAllString(read(t, page), ""), -1) {
			if n := len(strings.Fields(p)); n > 120 && !strings.HasPrefix(strings.TrimSpace(p), "|") {
				t.Errorf("%s: a paragraph has %d words: %.60s…", page, n, p)
			}
		}
	}
}

// Every reason for which a packet is dropped is explained.
func TestDropReasons(t *testing.T) {
	text := read(t, "troubleshooting.md")
	for _, r := range onpath.DropReasons {
		if !regexp.MustCompile(`(?m)^\| .*` + "`" + string(r) + "`" + `.* \| .+ \|$`).MatchString(text) {
			t.Errorf("troubleshooting.md does not say what %s is", r)
		}
	}
}

// TestToolsInstallWhatReadmeRuns: on a machine with nothing but Go, README's example
// finds each program it runs, by itself or in a function made of the machine's own.
func TestToolsInstallWhatReadmeRuns(t *testing.T) {
	_, text, _ := strings.Cut(read(t, "../README.md"), "\n## A chain of your own in five minutes\n")
	text, _, _ = strings.Cut(text, "\n## ")
	if !regexp.MustCompile(`(?m)^make build tools\b`).MatchString(text) {
		t.Error("the example does not begin with make build tools")
	}
	chain := read(t, "../examples/own/chain.yaml")
	programs := []string{"containerd", "runc"}
	for _, m := range regexp.MustCompile(`lab exec \S+ \S+ \S+ -- (\w+)`).FindAllStringSubmatch(text, -1) {
		programs = append(programs, m[1])
	}
	for _, m := range regexp.MustCompile(`(?m)health: \{exec: \[(\w+)|^ +(\w+) -f /etc/`).FindAllStringSubmatch(chain, -1) {
		programs = append(programs, m[1]+m[2])
	}
	for _, p := range []string{"curl", "nft"} {
		if !slices.Contains(programs, p) {
			t.Errorf("%s is run nowhere any more: mend this test", p)
		}
	}
	_, needs, _ := strings.Cut(read(t, "../scripts/setup"), "\nexamples | ")
	needs, _, _ = strings.Cut(needs, ";;")
	for _, p := range programs {
		if !strings.Contains(needs, "\tneed "+p+" ") {
			t.Errorf("make tools does not install %s", p)
		}
	}
}

// TestRemovalNamesPackages: whoever wants to be rid of what was installed finds it named.
func TestRemovalNamesPackages(t *testing.T) {
	_, packages, _ := strings.Cut(read(t, "removal.md"), "\n## Packages\n")
	packages, _, _ = strings.Cut(packages, "\n## ")
	for _, script := range []string{"../scripts/setup", "../test/kernels/run"} {
		needs := regexp.MustCompile(`(?m)^\t?need \S+ (\S+)|missing="\$missing ([a-z0-9-]+)"`).FindAllStringSubmatch(read(t, script), -1)
		if len(needs) == 0 {
			t.Errorf("%s needs nothing any more: mend this test", script)
		}
		for _, m := range needs {
			if p := m[1] + m[2]; !regexp.MustCompile(`[ ,]` + regexp.QuoteMeta(p) + `[,;. ]`).MatchString(packages) {
				t.Errorf("removal.md does not say that %s may install %s", script, p)
			}
		}
	}
}
