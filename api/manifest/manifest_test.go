package manifest_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
)

const head = "apiVersion: onpath/v1alpha1\n"

const web = head + `kind: Chain
metadata: {name: web}
spec:
  from: any
  to: {hosts: website}
  select:
  - {protocol: tcp, destinationPorts: ["80", 8000-8999, 443]}
  through:
  - {function: firewall, instances: 2, none: drop}
  - {deployment: ids, mode: mirror}
`

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "b.yaml", web+"---\n# nothing here\n---\n"+head+"kind: Hosts\nmetadata: {name: website}\nspec: {addresses: [10.9.0.2, 2001:db8::2]}\n")
	write(t, dir, "a.json", `{"apiVersion":"onpath/v1alpha1","kind":"Tenant","metadata":{"name":"acme"}}`)
	write(t, dir, "squid.conf", "http_port 3128\n")
	write(t, dir, ".hidden.yaml", "nonsense")
	write(t, dir, "notes.txt", "nonsense")
	f := write(t, dir, "c.yml", "\ufeff"+head+"kind: Function\nmetadata: {name: cache}\nspec:\n  container:\n    image: ./squid.tar\n    files:\n      /etc/squid.conf: {fromFile: squid.conf, mode: 0600}\n")

	docs, err := manifest.Load([]string{dir, "-"}, strings.NewReader(head+"kind: Cloudlet\nmetadata: {name: fra1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var keys, places []string
	for _, d := range docs {
		keys = append(keys, onpath.KeyOf(d.Object).String())
		places = append(places, strings.TrimPrefix(d.Place(), dir+"/"))
	}
	if got, want := strings.Join(keys, ", "), "tenant acme, chain default/web, hosts default/website, function default/cache, cloudlet fra1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := strings.Join(places, " "), "a.json:1:1 b.yaml:1:1 b.yaml:15:1 c.yml:1:1 stdin:1:1"; got != want {
		t.Errorf("places %s, want %s", got, want)
	}
	c := docs[3].Object.(*onpath.Function).Spec.Container
	if want := filepath.Join(dir, "squid.tar"); c.Image != want {
		t.Errorf("image %s, want %s", c.Image, want)
	}
	if got, want := c.Files["/etc/squid.conf"], (onpath.File{Content: "http_port 3128\n", Mode: 0o600}); got != want {
		t.Errorf("file %+v, want %+v", got, want)
	}
	if got, want := docs[3].PlaceOf("spec.container.files[/etc/squid.conf].content"), f+":8:7"; got != want {
		t.Errorf("place of a field that is not written: %s, want %s", got, want)
	}
}

// TestCut: a file that ends in the middle of a text or word is whole by YAML's
// rules; only the missing end of its last line tells.
func TestCut(t *testing.T) {
	dir := t.TempDir()
	block := head + "kind: Function\nmetadata: {name: f}\nspec:\n  container:\n    image: a/bc\n    files:\n      /etc/x:\n        content: |\n          one\n          tw"
	for name, c := range map[string]struct{ text, want string }{
		"text":        {block, ":9:18"},
		"whole text":  {block + "\n", ""},
		"flow":        {head + "kind: Cloudlet\nmetadata: {name: fra1}", ""},
		"word":        {head + "kind: Cloudlet\nmetadata:\n  name: fra", ":4:9"},
		"quoted":      {head + "kind: Cloudlet\nmetadata:\n  name: \"fra1\"", ""},
		"of the last": {head + "kind: Cloudlet\nmetadata:\n  name: fra1\n---\n" + head + "kind: Cloudlet\nmetadata: {name: fra2}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := write(t, dir, "f.yaml", c.text)
			docs, err := manifest.Load([]string{p}, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := c.want
			if want != "" {
				want = p + want
			}
			if got := docs[len(docs)-1].Cut; got != want {
				t.Errorf("cut %q, want %q", got, want)
			}
			if len(docs) > 1 && docs[0].Cut != "" {
				t.Errorf("the first document is called cut at %s", docs[0].Cut)
			}
		})
	}
}

func TestErrorsHavePlaces(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string // beginnings of the lines
	}{
		{"several, in order", strings.NewReplacer("instances: 2", "instances: 2000", "from: any", "fromm: any", "tcp", "tpc").Replace(web),
			[]string{`f:5:3: chain default/web: spec: unknown field "fromm"; did you mean from?`}},
		{"validation, in order", strings.NewReplacer("instances: 2", "instances: 2000", "from: any", "from: {}", "tcp", "tpc").Replace(web),
			[]string{`f:5:3: chain default/web: spec.from: is missing`, `f:8:16: chain default/web: spec.select[0].protocol: "tpc"`, `f:10:37: chain default/web: spec.through[0].instances: 2000 is out of range`}},
		{"a missing field is placed at what surrounds it", strings.Replace(web, "  to: {hosts: website}\n", "", 1), []string{`f:4:1: chain default/web: spec.to: is missing`}},
		{"syntax after a good document", web + "---\na: [1, 2\nb: 3\n", []string{`f:1`}},
		{"both documents", "kind: Chian\n---\nkind: Chain\nmetadata: {name: a}\n", []string{`f:1:7: kind: there is no kind "Chian"; did you mean Chain?`, `f:3:1: chain default/a: apiVersion: is missing`}},
		{"numbers for text", head + "kind: Tenant\nmetadata: {name: 42, labels: {a: true}}\n", []string{`f:3:18: metadata.name: "42" is a number where text is wanted; write it in quotes: "42"`, `f:3:34: metadata.labels[a]: "true" is a truth value`}},
		{"an anchor's error stands at the anchor", head + "kind: Chain\nmetadata: {name: a}\nspec:\n  from: &x {hosts: A}\n  to: *x\n  through: [{function: f}]\n", []string{`f:5:20: chain default/a: spec.from.hosts`, `f:5:20: chain default/a: spec.to.hosts`}},
		{"the same twice", web + "---\n" + web, []string{`f:15:18: chain default/web: metadata.name: is written twice, first at f:1:1`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			docs, err := manifest.Parse([]byte(c.in), "f", ".")
			var es onpath.Errors
			if !errors.As(err, &es) || docs != nil {
				t.Fatalf("got %v and %d documents", err, len(docs))
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(c.want) {
				t.Fatalf("got\n%v\nwant %d lines", err, len(c.want))
			}
			for i, w := range c.want {
				if !strings.HasPrefix(lines[i], w) {
					t.Errorf("got  %s\nwant %s", lines[i], w)
				}
			}
		})
	}
}

func TestHostileInput(t *testing.T) {
	bomb := head + "kind: Chain\nmetadata: {name: a}\nspec:\n  through:\n  - &a {function: f, select: [{}, {}, {}, {}, {}, {}, {}, {}, {}, {}]}\n" +
		strings.Repeat("  - *a\n", 60_000)
	loop := head + "kind: Chain\nmetadata: {name: a}\nspec: &s\n  through: [*s]\n"
	for name, in := range map[string]string{
		"alias bomb":   bomb,
		"endless loop": loop,
		"deep":         head + "kind: Tenant\nmetadata: {name: a}\nspec: " + strings.Repeat("[", 20_000),
		"many errors":  head + "kind: Tenant\nmetadata: {name: a}\nspec:\n" + strings.Repeat("  x: 1\n", 100_000),
		"long scalar":  head + "kind: Tenant\nmetadata: {name: " + strings.Repeat("x", 1_000_000) + "}\n",
		"NUL":          head + "\x00",
		"latin-1":      head + "# gr\xfc\xdfe\n",
		"utf-16":       "\xff\xfea\x00",
	} {
		_, err := manifest.Parse([]byte(in), "f", ".")
		if err == nil {
			t.Errorf("%s: no error", name)
		} else if n := len(err.Error()); n > 40_000 {
			t.Errorf("%s: an error of %d bytes: %.200s", name, n, err)
		}
	}
}

func TestLocate(t *testing.T) {
	docs, err := manifest.Parse([]byte(web), "f.yaml", ".")
	if err != nil {
		t.Fatal(err)
	}
	err = manifest.Locate(docs, onpath.Errors{
		{Code: onpath.CodeInvalid, Object: "node n1", Message: "has no room"},
		{Code: onpath.CodeNotFound, Object: "chain default/web", Field: "spec.through[1].deployment", Message: "there is none"},
		{Code: onpath.CodeNotFound, Object: "chain default/web", Field: "spec.to.hosts", Message: "there is none"},
	})
	want := "f.yaml:6:15: chain default/web: spec.to.hosts: there is none\nf.yaml:11:18: chain default/web: spec.through[1].deployment: there is none\nnode n1: has no room"
	if err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	if code := onpath.CodeOf(err); code != onpath.CodeInvalid {
		t.Errorf("code %s", code)
	}
	if plain := errors.New("no route to host"); manifest.Locate(docs, plain) != plain {
		t.Error("a plain error was changed")
	}
}

// TestEncodeNothing: of nothing there is nothing to write, and that is no error.
func TestEncodeNothing(t *testing.T) {
	var out strings.Builder
	if err := manifest.Encode(&out); err != nil || out.Len() > 0 {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestEncodeLoad checks that what is written can be read again and means the
// same, server's fields apart.
func TestEncodeLoad(t *testing.T) {
	in := web + "---\n" + head + `kind: Function
metadata: {name: cache, labels: {a: "1"}}
spec:
  container:
    image: host
    command: [squid, "-N", "yes", "0x10", "1:2"]
    env: {A: "8080", B: "true", C: "", D: "~", E: "2001-01-01", F: "a: b # c", G: "ä <&> \u2028"}
    files: {/x: {content: "a\n  b\n\tc\n"}, /y: {content: "no newline", mode: 0755}}
  health: {tcp: 80}
`
	docs, err := manifest.Parse([]byte(in), "f", ".")
	if err != nil {
		t.Fatal(err)
	}
	docs[0].Object.Meta().Version = 7
	docs[0].Object.(*onpath.Chain).Status.Active = true
	var out bytes.Buffer
	if err := manifest.Encode(&out, manifest.Objects(docs)...); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"version: 7", "mode: 0644", "mode: 0755", "content: |", "destinationPorts: [\"80\""} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
	again, err := manifest.Parse(out.Bytes(), "out", ".")
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	docs[0].Object.Meta().Version = 0
	docs[0].Object.(*onpath.Chain).Status = onpath.ChainStatus{}
	if !reflect.DeepEqual(manifest.Objects(docs), manifest.Objects(again)) {
		t.Errorf("changed on the way:\n%s", out.String())
	}
}

// TestLoadLists: a file that is too large for content is packed, if it is a list of
// addresses for an ebpf function, with a note of what is left out.
func TestLoadLists(t *testing.T) {
	dir := t.TempDir()
	var list strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&list, "10.%d.%d.1\t%d\n", i>>8, i&0xff, i%9)
	}
	write(t, dir, "list.txt", "# levels\n"+list.String()+"10.0.0.1 3\n10.0.0.0/24 ; net\n")
	write(t, dir, "odd.txt", list.String()+"bad.example\n")
	write(t, dir, "huge.txt", strings.Repeat("192.0.2.1 and what is said of it\n", 1<<19))
	function := func(list string) string {
		return write(t, dir, "f.yaml", head+"kind: Function\nmetadata: {name: f}\nspec: {ebpf: {object: firewall, files: {blocklist: {fromFile: "+list+"}}}}\n")
	}
	docs, err := manifest.Load([]string{function("list.txt")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	content := docs[0].Object.(*onpath.Function).Spec.EBPF.Files["blocklist"].Content
	l, _, err := onpath.ReadAddresses(content)
	if err != nil || len(content) > 100<<10 || len(l) != 40_000 {
		t.Errorf("%d bytes hold %d entries, %v; must be 40000", len(content), len(l), err)
	}
	if want := "list.txt: 40000 entries; 2 lines are left out"; len(docs[0].Notes) != 1 || !strings.Contains(docs[0].Notes[0], want) {
		t.Errorf("notes are %q; must be one of %q", docs[0].Notes, want)
	}
	for file, want := range map[string]string{
		"odd.txt": `odd.txt: line 40001: "bad.example"`, "huge.txt": "huge.txt has more than 16777216 bytes",
		"gone.txt": "gone.txt: there is no such file",
	} {
		if _, err := manifest.Load([]string{function(file)}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", file, err, want)
		}
	}
}

// TestLoadHosts: a file of addresses becomes the addresses of a Hosts, and its faults
// name file and line.
func TestLoadHosts(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "ok.txt", "192.0.2.1 # one\n192.0.2.1\n198.51.100.0/24\n")
	write(t, dir, "odd.txt", "192.0.2.1\nbad.example\n")
	var list strings.Builder
	for i := range 100_001 {
		fmt.Fprintf(&list, "10.%d.%d.%d\n", i>>16, i>>8&0xff, i&0xff)
	}
	write(t, dir, "many.txt", list.String())
	write(t, dir, "long.txt", "192.0.2.1 # "+strings.Repeat("x", onpath.MaxListFile)+"\n192.0.2.2\n")
	hosts := func(list string) string {
		return write(t, dir, "h.yaml", head+"kind: Hosts\nmetadata: {name: h}\nspec: {addresses: [203.0.113.1], fromFile: "+list+"}\n")
	}
	docs, err := manifest.Load([]string{hosts("ok.txt")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := docs[0].Object.(*onpath.Hosts).Spec
	if got := fmt.Sprint(spec.Addresses); got != "[192.0.2.1 198.51.100.0/24 203.0.113.1]" || spec.FromFile != "" || len(docs[0].Notes) != 1 {
		t.Errorf("the hosts are %s, %q, with notes %q", got, spec.FromFile, docs[0].Notes)
	}
	for file, want := range map[string]string{
		"odd.txt":  `h.yaml:4:44: hosts default/h: spec.fromFile: ` + dir + `/odd.txt: line 2: "bad.example"`,
		"many.txt": "at most 100000", "long.txt": "long.txt has more than 16777216 bytes", "gone.txt": "gone.txt: there is no such file",
	} {
		if _, err := manifest.Load([]string{hosts(file)}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", file, err, want)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	empty := t.TempDir()
	big := write(t, dir, "big.yaml", strings.Repeat("# ten megabytes of nothing\n", 400_000))
	loose := write(t, dir, "loose.yaml", head+"kind: Function\nmetadata: {name: f}\nspec: {container: {image: a/bc, files: {/a: {fromFile: none.conf}}}}\n")
	binary := write(t, dir, "binary.conf", "a\x00b")
	bin := write(t, dir, "bin.yaml", head+"kind: Function\nmetadata: {name: f}\nspec: {container: {image: a/bc, files: {/a: {fromFile: "+binary+"}}}}\n")
	for _, c := range []struct{ path, want string }{
		{filepath.Join(dir, "absent.yaml"), "there is no such file"},
		{empty, "has no *.yaml"},
		{big, "big.yaml:1:1: the file is larger than 4 MiB"},
		{loose, "loose.yaml:4:56: function default/f: spec.container.files[/a].fromFile: " + dir + "/none.conf: there is no such file"},
		{bin, "is not text; put binary files into the image"},
		{os.DevNull, "holds no resource"},
	} {
		_, err := manifest.Load([]string{c.path}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%s: got %v, want %q", c.path, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(web))
	f.Add([]byte(head + "kind: Node\nmetadata: {name: n}\nspec: {cloudlet: c, underlay: {address: 10.0.0.1}}\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := manifest.Parse(data, "f", t.TempDir())
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := manifest.Encode(&out, manifest.Objects(docs)...); err != nil {
			t.Fatal(err)
		}
		if _, err := manifest.Parse(out.Bytes(), "out", "."); err != nil {
			t.Fatalf("own output refused: %v\n%s", err, out.String())
		}
	})
}
