package etcd

import (
	"errors"
	"os"
	"path/filepath"
)

// opened are the files of the store as they were when it was opened, by path. What is
// written to files that nobody can open again is lost with this process.
type opened map[string]os.FileInfo

// openedIn notes the files of the store in dir.
func openedIn(dir string) (opened, error) {
	member := filepath.Join(dir, dataDir, "member")
	o := opened{}
	for _, path := range []string{filepath.Join(dir, "lock"), filepath.Join(member, "snap", "db"), filepath.Join(member, "wal")} {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		o[path] = info
	}
	return o, nil
}

// there reports whether the files still are the ones that were opened; the folder of
// the log must have files, which etcd replaces from time to time.
func (o opened) there() bool {
	for path, was := range o {
		info, err := os.Stat(path)
		if err != nil {
			return !errors.Is(err, os.ErrNotExist) // another error is no proof
		}
		if !os.SameFile(was, info) {
			return false
		}
		if !info.IsDir() {
			continue
		}
		if logs, err := filepath.Glob(filepath.Join(path, "*.wal")); err == nil && len(logs) == 0 {
			return false
		}
	}
	return true
}

// stillThere refuses, from then on, when the files of the store were taken away
// or replaced while it runs.
func (e *embedded) stillThere() error {
	e.filesMu.RLock()
	there := e.files.there()
	e.filesMu.RUnlock()
	if there {
		return nil
	}
	e.fatal(deleted)
	err := e.broken()
	e.log.Error("nothing is written any more", "err", err)
	return err
}

// deleted is the cause that fatal is told for files that are gone.
const deleted = "its files were deleted or replaced while the server runs, and what is written now would be lost"

// savesWhatIsLeft is what an operator does about deleted.
func (e *embedded) savesWhatIsLeft() string {
	return "this server still reads what it had: save it (onpath get KIND -o yaml, for each kind), stop the server, restore " + e.dir +
		" from a backup, start it again; without one it starts empty, and nodes keep what they run until onpath node accept"
}

func (s *Store) stillThere() error {
	if s.embedded == nil {
		return nil
	}
	if err := s.embedded.broken(); err != nil {
		return err
	}
	return s.embedded.stillThere()
}
