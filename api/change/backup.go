package change

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

// The parts of a backup, a tar file: what it is, the store at one moment, and files of
// the server's folder by their names there. It has the authority's key and the secret
// of tunnels, so only who could read those files gets it.
const (
	BackupAbout = "backup.json"
	BackupStore = "store.snapshot"
)

// backedUp are the files and folders of the server's that belong to a backup.
var backedUp = []string{"secret", "auth", "log", "ledger"}

// snapshotter is a store that can be copied while it is written to.
type snapshotter interface {
	Snapshot(ctx context.Context, w io.Writer) error
}

// backups copies the store between two changes.
type backups struct {
	d      Deps
	writer *writer
}

func (s *backups) backup(w http.ResponseWriter, r *http.Request) error {
	q := router.Query(r, "images")
	images := q.Boolean("images")
	if q.Err != nil {
		return q.Err
	}
	store, ok := s.d.Store.(snapshotter)
	if !ok {
		return onpath.Errorf(onpath.CodeUnsupported, "this store cannot be backed up")
	}
	f, err := os.CreateTemp(s.d.Dir, ".backup-")
	if err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "a snapshot of the store finds no place: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := s.snapshot(r.Context(), store, f); err != nil {
		return err
	}
	out := router.NewStream(w, "application/x-tar")
	buffer := bufio.NewWriterSize(tarTo{out}, 256<<10)
	t := tar.NewWriter(buffer)
	parts := backedUp
	if images {
		parts = append(parts[:len(parts):len(parts)], "images")
	}
	err = s.writeBackup(t, f, parts)
	if err == nil {
		err = errors.Join(t.Close(), buffer.Flush())
	}
	out.End(err)
	return nil
}

// snapshot copies the store as it is while no change through the API is under way: what belongs
// to one is in the copy, or nothing of it. With the first bytes it is settled what is in the
// copy, and changes go on.
func (s *backups) snapshot(ctx context.Context, store snapshotter, f *os.File) error {
	s.writer.writing.take("")
	release := sync.OnceFunc(s.writer.writing.pass)
	defer release()
	return store.Snapshot(ctx, firstBytes{f, release})
}

// firstBytes calls begun before the first bytes are written.
type firstBytes struct {
	io.Writer
	begun func()
}

// Write implements io.Writer.
func (w firstBytes) Write(b []byte) (int, error) {
	w.begun()
	return w.Writer.Write(b)
}

// tarTo writes into an answer.
type tarTo struct{ out *router.StreamWriter }

func (t tarTo) Write(b []byte) (int, error) {
	t.out.Send(b)
	return len(b), nil
}

func (s *backups) writeBackup(t *tar.Writer, snapshot *os.File, parts []string) error {
	about, err := json.Marshal(wire.Backup{Version: s.d.Version, API: onpath.APIVersion, At: s.d.Clock().UTC()})
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: BackupAbout, Mode: 0o600, Size: int64(len(about)), ModTime: s.d.Clock()}); err != nil {
		return err
	}
	if _, err := t.Write(about); err != nil {
		return err
	}
	if err := addFile(t, BackupStore, snapshot.Name()); err != nil {
		return err
	}
	for _, part := range parts {
		err := filepath.WalkDir(filepath.Join(s.d.Dir, part), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) { // it has none, or it is gone by now
				return nil
			}
			if err != nil || !d.Type().IsRegular() || strings.HasPrefix(d.Name(), ".") || filepath.Base(filepath.Dir(path)) == "uploads" {
				return err
			}
			name, err := filepath.Rel(s.d.Dir, path)
			if err != nil {
				return err
			}
			return addFile(t, filepath.ToSlash(name), path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addFile adds a file as large as it is when it is opened.
func addFile(t *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), Size: info.Size(), ModTime: info.ModTime().Truncate(time.Second)}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(t, f, info.Size())
	return err
}
