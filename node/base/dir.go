package base

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
)

// Dir is the agent's state folder. Each part knows its own file in it.
type Dir string

// File is a file or a folder of the state folder.
func (d Dir) File(name string) string { return filepath.Join(string(d), name) }

// Records has a record of each instance.
func (d Dir) Records() string { return d.File("instances") }

// Namespaces has the network namespaces of instances, by id.
func (d Dir) Namespaces() string { return d.File("netns") }

// NetNS is the network namespace of an instance.
func (d Dir) NetNS(id string) string { return filepath.Join(d.Namespaces(), id) }

// Faults has the faults that last.
func (d Dir) Faults() string { return d.File("faults") }

// Identity has the certificate with which the node joined.
func (d Dir) Identity() string { return d.File("identity") }

// Init creates the folder.
func (d Dir) Init() error {
	for _, d := range []string{string(d), d.Records(), d.Namespaces()} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return fmt.Errorf("create the agent's state folder: %w", err)
		}
	}
	// Root of a tenant's container, nobody here, passes to its files further down.
	if err := os.Chmod(string(d), 0o711); err != nil {
		return fmt.Errorf("create the agent's state folder: %w", err)
	}
	return nil
}

// Lock keeps a second agent out of the folder, and the removal of the node, while an agent
// runs. It removes what a killed agent had half written.
func (d Dir) Lock() (unlock func(), err error) {
	f, err := os.OpenFile(d.File("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the agent's state folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &onpath.Error{
			Code: onpath.CodeConflict, Message: "an agent runs with the state folder " + string(d),
			Remedy: "stop it, or give this one a folder of its own", Cause: err,
		}
	}
	if err := wholefile.Clean(string(d), d.Records(), d.Faults(), d.Identity()); err != nil {
		f.Close()
		return nil, fmt.Errorf("clean the agent's state folder: %w", err)
	}
	return func() { f.Close() }, nil
}
