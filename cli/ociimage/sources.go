package ociimage

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// source is one archive, suite and its components, as apt reads them.
type source struct {
	uri        string
	suite      string
	components []string
	signedBy   string // path of a keyring, or a key in armour
	trusted    bool
}

// line is the source in the one-line form, with keyring being where signedBy is
// found as a file.
func (s source) line(keyring string) string {
	var opts []string
	if keyring != "" {
		opts = append(opts, "signed-by="+keyring)
	}
	if s.trusted {
		opts = append(opts, "trusted=yes")
	}
	opt := ""
	if len(opts) > 0 {
		opt = "[" + strings.Join(opts, " ") + "] "
	}
	return "deb " + opt + s.uri + " " + s.suite + " " + strings.Join(s.components, " ")
}

// readSources reads all apt sources of the machine whose apt directory is dir.
func readSources(dir string) ([]source, error) {
	files := []string{filepath.Join(dir, "sources.list")}
	parts, err := filepath.Glob(filepath.Join(dir, "sources.list.d", "*"))
	if err != nil {
		return nil, err
	}
	sort.Strings(parts)
	var out []source
	for _, f := range append(files, parts...) {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // absent, or not for us to read
		}
		switch filepath.Ext(f) {
		case ".list":
			out = append(out, parseList(string(data))...)
		case ".sources":
			out = append(out, parseDeb822(string(data))...)
		}
	}
	return out, nil
}

// parseList reads the one-line format of sources.list(5).
func parseList(text string) []source {
	var out []source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		var s source
		if rest, opts, ok := cutOptions(line); ok {
			line = rest
			for _, o := range strings.Fields(opts) {
				k, v, _ := strings.Cut(o, "=")
				s.option(k, v)
			}
		}
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "deb" {
			continue
		}
		s.uri, s.suite, s.components = f[1], f[2], f[3:]
		out = append(out, s)
	}
	return out
}

func cutOptions(line string) (rest, opts string, ok bool) {
	before, after, ok := strings.Cut(line, "[")
	if !ok || strings.TrimSpace(before) != "deb" {
		return line, "", false
	}
	opts, rest, ok = strings.Cut(after, "]")
	return before + " " + rest, opts, ok
}

func (s *source) option(key, value string) {
	switch strings.ToLower(key) {
	case "signed-by":
		s.signedBy = value
	case "trusted":
		s.trusted = value == "yes"
	}
}

// parseDeb822 reads the stanzas of a .sources file.
func parseDeb822(text string) []source {
	var out []source
	for _, stanza := range stanzas(text) {
		if !slices.Contains(strings.Fields(stanza["types"]), "deb") || strings.TrimSpace(stanza["enabled"]) == "no" {
			continue
		}
		for _, uri := range strings.Fields(stanza["uris"]) {
			for _, suite := range strings.Fields(stanza["suites"]) {
				s := source{uri: uri, suite: suite, components: strings.Fields(stanza["components"])}
				s.option("signed-by", strings.TrimSpace(stanza["signed-by"]))
				s.option("trusted", strings.TrimSpace(stanza["trusted"]))
				out = append(out, s)
			}
		}
	}
	return out
}

func stanzas(text string) []map[string]string {
	var out []map[string]string
	var now map[string]string
	var key string
	sc := bufio.NewScanner(strings.NewReader(text))
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			now = nil
		case line[0] == ' ' || line[0] == '\t':
			if now != nil {
				now[key] += "\n" + strings.TrimSpace(line)
			}
		default:
			k, v, ok := strings.Cut(line, ":")
			if !ok {
				continue
			}
			if now == nil {
				now = map[string]string{}
				out = append(out, now)
			}
			key = strings.ToLower(k)
			now[key] = strings.TrimSpace(v)
		}
	}
	return out
}

// distribution is the machine's own distribution: the sources that make it up.
type distribution struct {
	codename string
	sources  []source
}

// pick takes from a machine's sources those of the distribution itself: third
// parties' archives have other suites or no component main. Other components may
// stand in lines of their own.
func pick(all []source, codename string) (distribution, error) {
	take := func(base string) distribution {
		d := distribution{codename: base}
		own := []string{base, base + "-updates", base + "-security", base + "/updates", base + "-backports"}
		archives := map[string]bool{}
		for _, s := range all {
			if slices.Contains(own, s.suite) && slices.Contains(s.components, "main") {
				archives[s.uri] = true
			}
		}
		for _, s := range all {
			if slices.Contains(own, s.suite) && archives[s.uri] && !strings.HasPrefix(s.uri, "cdrom:") {
				d.sources = append(d.sources, s)
			}
		}
		return d
	}
	for _, base := range []string{codename, "stable", "testing", "unstable", "sid", "oldstable"} {
		d := take(base)
		if base != "" && slices.ContainsFunc(d.sources, func(s source) bool { return s.suite == base }) {
			return d, nil
		}
	}
	return distribution{}, fmt.Errorf("no apt source of this machine offers the suite %q with component main", codename)
}

// withBackports adds the backports suite from the mirror that has the main one.
func (d distribution) withBackports() distribution {
	suite := d.codename + "-backports"
	if slices.ContainsFunc(d.sources, func(s source) bool { return s.suite == suite }) {
		return d
	}
	for _, s := range d.sources {
		if s.suite == d.codename {
			s.suite = suite
			d.sources = append(slices.Clone(d.sources), s)
			return d
		}
	}
	return d
}

// codename reads the distribution's name from os-release(5); derivatives say
// what they derive from.
func codename(osRelease string) string {
	v := map[string]string{}
	for line := range strings.Lines(osRelease) {
		k, val, _ := strings.Cut(strings.TrimSpace(line), "=")
		v[k] = strings.Trim(val, `"'`)
	}
	for _, k := range []string{"UBUNTU_CODENAME", "DEBIAN_CODENAME", "VERSION_CODENAME"} {
		if v[k] != "" {
			return v[k]
		}
	}
	return ""
}
