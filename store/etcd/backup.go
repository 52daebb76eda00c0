package etcd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/onpath/onpath"
)

// revisionsAhead is how much newer than its snapshot a restored store is, in
// revisions: what was written after the snapshot must not look newer than what will be
// written now.
const revisionsAhead = 1 << 32

// Snapshot writes all of the store, as it is at one moment, in etcd's own form.
// Writers are not held up.
func (s *Store) Snapshot(ctx context.Context, w io.Writer) error {
	if s.embedded == nil {
		e := onpath.Errorf(onpath.CodeUnsupported, "the store is an etcd cluster of your own")
		e.Remedy = "back it up as you back up others (etcdctl snapshot save), with the server's folder beside it"
		return e
	}
	r, err := s.client.Snapshot(ctx)
	if err != nil {
		return s.failed(ctx, "snapshot", err)
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}

// Restore makes a store in an empty or absent folder of what Snapshot has written into
// a file. It is as if the store had never been elsewhere, but that its revisions go on
// far above those of the snapshot.
func Restore(dir, file string) error {
	there, err := holdsFiles(filepath.Join(dir, dataDir))
	if err == nil && there {
		err = onpath.Errorf(onpath.CodeExists, "there is a store in %s already", dir)
	}
	if err != nil {
		return err
	}
	fresh := filepath.Join(dir, newDir)
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	c := (&embedded{}).config(fresh, slog.New(slog.DiscardHandler))
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: c.Name, OutputDataDir: fresh, PeerURLs: []string{c.AdvertisePeerUrls[0].String()},
		InitialCluster: c.InitialCluster, InitialClusterToken: c.InitialClusterToken,
		RevisionBump: revisionsAhead, MarkCompacted: true,
	})
	if err != nil {
		return errors.Join(onpath.Errorf(onpath.CodeInvalid, "the snapshot of the store cannot be used: %w", err), os.RemoveAll(fresh))
	}
	return errors.Join(removeEmpty(filepath.Join(dir, dataDir)), os.Rename(fresh, filepath.Join(dir, dataDir)), syncDirs(dir))
}
