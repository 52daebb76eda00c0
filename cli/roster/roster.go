// Package roster is the list of the agents that were started on this machine:
// where each keeps its state, and in which network namespace it works. It
// outlives the agents, as their instances and data paths do, so that whoever
// takes a network namespace away can take away first what agents left in it.
package roster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is where the list is kept. It does not survive a reboot, as what agents
// leave behind does not.
const Dir = "/run/onpath/agents"

// Entry is one agent.
type Entry struct {
	Name       string `json:"name"`                 // of the node
	StateDir   string `json:"stateDir"`             // whole path; one agent each
	Containerd string `json:"containerd,omitempty"` // socket; empty: a private one
	NetNS      NetNS  `json:"netns"`                // where it works
}

// NetNS is the identity of a network namespace for as long as it lives.
type NetNS struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// At is the network namespace that the file at path stands for.
func At(path string) (NetNS, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return NetNS{}, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return NetNS{uint64(st.Dev), st.Ino}, nil
}

// Alive reports whether a process is in the network namespace or a mount keeps
// it, as far as the calling process sees them, and the path of one that does: the
// mount if there is one, since processes come and go.
func (n NetNS) Alive() (path string, ok bool) {
	processes, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, p := range append(mounted(), processes...) {
		if at, err := At(p); err == nil && at == n {
			return p, true
		}
	}
	return "", false
}

// mounted are the places where network namespaces are mounted.
func mounted() (paths []string) {
	table, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[3], "net:[") {
			paths = append(paths, f[4])
		}
	}
	return paths
}

// Here is the network namespace of the process.
func Here() (NetNS, error) { return At("/proc/self/ns/net") }

// file is named by the state folder, which no two agents share.
func file(dir, stateDir string) string {
	sum := sha256.Sum256([]byte(stateDir))
	return filepath.Join(dir, hex.EncodeToString(sum[:8])+".json")
}

// Enter puts an agent on the list in dir, in place of what stood there for its
// state folder.
func Enter(dir string, e Entry) error {
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("list of agents: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("list of agents: %w", err)
	}
	temporary := file(dir, e.StateDir) + ".new"
	if err := os.WriteFile(temporary, b, 0o600); err != nil {
		return fmt.Errorf("list of agents: %w", err)
	}
	if err := os.Rename(temporary, file(dir, e.StateDir)); err != nil {
		return fmt.Errorf("list of agents: %w", err)
	}
	return nil
}

// Leave takes the agent with that state folder off the list. The folders of the
// list go with its last entry.
func Leave(dir, stateDir string) error {
	if err := os.Remove(file(dir, stateDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list of agents: %w", err)
	}
	_ = os.Remove(file(dir, stateDir) + ".new") // an Enter was killed
	if os.Remove(dir) == nil {
		_ = os.Remove(filepath.Dir(dir)) // if nothing else is in it
	}
	return nil
}

// In lists the agents of one network namespace by name.
func In(dir string, ns NetNS) ([]Entry, error) {
	list, err := all(dir)
	return slices.DeleteFunc(list, func(e Entry) bool { return e.NetNS != ns }), err
}

// Of is the agent with that state folder, nil if none is on the list.
func Of(dir, stateDir string) (*Entry, error) {
	list, err := all(dir)
	if i := slices.IndexFunc(list, func(e Entry) bool { return e.StateDir == stateDir }); i >= 0 {
		return &list[i], err
	}
	return nil, err
}

func all(dir string) (list []Entry, err error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list of agents: %w", err)
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		if filepath.Ext(path) != ".json" {
			continue // half written
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just left
		}
		var e Entry
		if err == nil {
			err = json.Unmarshal(b, &e)
		}
		if err != nil {
			return nil, fmt.Errorf("list of agents: %s: %w; remove the file if no agent was started here", path, err)
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}
