package container

import (
	"bytes"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/containerd/continuity/fs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"github.com/onpath/onpath"
)

// writeFiles puts the instance's own files into its root file system: copies,
// so that the program may change or replace them. They are owner's.
func writeFiles(root string, owner uint32, r onpath.RunSpec) error {
	files := map[string]onpath.File{
		"/etc/hostname":    {Content: r.Hostname + "\n"},
		"/etc/hosts":       {Content: "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 " + r.Hostname + "\n"},
		"/etc/resolv.conf": {Content: resolvConf(r.Spec.Container)},
	}
	for path, f := range r.Spec.Container.Files {
		files[path] = f
	}
	paths := make([]string, 0, len(files))
	for path := range files {
		paths = append(paths, path)
	}
	sort.Strings(paths)
	for _, path := range paths {
		if err := writeFile(root, path, owner, files[path]); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(root, path string, owner uint32, f onpath.File) error {
	invalid := func(format string, args ...any) error {
		return onpath.Errorf(onpath.CodeInvalid, "file %s: "+format, append([]any{path}, args...)...)
	}
	clean := filepath.Clean(path)
	if !filepath.IsAbs(path) || clean == "/" {
		return invalid("a file in a container needs an absolute path")
	}
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if covered(clean, []string{dir}) {
			return invalid("nothing can be written below %s", dir)
		}
	}
	// Symbolic links of the image are followed inside the image.
	target, err := fs.RootPath(root, clean)
	if err != nil {
		return invalid("%w", err)
	}
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		return invalid("the image has a directory there")
	}
	if err := makeDirs(filepath.Dir(target), owner); err != nil {
		return invalid("%w", err)
	}
	mode := os.FileMode(f.Mode).Perm()
	if mode == 0 {
		mode = 0o644
	}
	if err := os.WriteFile(target, []byte(f.Content), mode); err != nil {
		return invalid("%w", err)
	}
	if err := os.Chmod(target, mode); err != nil { // an existing file kept its mode; umask does not count
		return invalid("%w", err)
	}
	if owner == 0 { // an existing file keeps its owner
		return nil
	}
	if err := os.Chown(target, int(owner), int(owner)); err != nil {
		return invalid("%w", err)
	}
	return nil
}

// makeDirs makes the folders that are not there, owner's.
func makeDirs(dir string, owner uint32) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := makeDirs(filepath.Dir(dir), owner); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Chown(dir, int(owner), int(owner))
}

// resolvConf is the node's, for functions that can reach its name servers at all.
func resolvConf(c *onpath.ContainerSpec) string {
	const none = "# no name server: the function has no outbound traffic of its own\n"
	if c.Outbound != onpath.OutboundNAT && c.Addresses != onpath.AddressesPool {
		return none
	}
	data, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return none
	}
	var out bytes.Buffer
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) == 2 && f[0] == "nameserver" && (strings.HasPrefix(f[1], "127.") || f[1] == "::1") {
			continue // the node's own resolver does not listen in the instance
		}
		out.WriteString(line)
	}
	return out.String()
}

func chainID(ids []digest.Digest) string { return identity.ChainID(ids).String() }
