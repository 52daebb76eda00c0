package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// errEmpty is a log without the entry that makes this server its member: etcd
// would wait for an election for ever.
var errEmpty = errors.New("nothing is in its log")

// check refuses a store that etcd would not open, or wait for without an end.
// What it does not see etcd finds.
func check(dir string) (err error) {
	defer func() {
		if p := recover(); p != nil { // what does not decode
			err = fmt.Errorf("its log is damaged: %v", p)
		}
	}()
	logs := filepath.Join(dir, "member", "wal")
	if !wal.Exist(logs) {
		return fmt.Errorf("there is no log in %s: %w", logs, errEmpty)
	}
	if err := checkPages(filepath.Join(dir, "member", "snap", "db")); err != nil {
		return err
	}
	// Only the very first file can be without an entry; once there are others,
	// snapshots were taken.
	if all, err := filepath.Glob(filepath.Join(logs, "*.wal")); err != nil || len(all) != 1 ||
		filepath.Base(all[0]) != "0000000000000000-0000000000000000.wal" {
		return err
	}
	w, err := wal.OpenForRead(nil, logs, &walpb.Snapshot{})
	if err != nil {
		return fmt.Errorf("its log in %s is damaged: %w", logs, err)
	}
	defer w.Close()
	_, _, entries, err := w.ReadAll()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("its log in %s is damaged: %w", logs, err)
	}
	if len(entries) == 0 {
		return fmt.Errorf("%w (%s)", errEmpty, logs)
	}
	return nil
}

// launched is what came of a start of etcd.
type launched struct {
	etcd *embed.Etcd
	err  error
}

// launch starts etcd in a goroutine of its own, which it may end: it does so,
// or panics, where it would end the process.
func launch(c *embed.Config) <-chan launched {
	out := make(chan launched, 1)
	go func() {
		l := launched{err: errGaveUp}
		defer func() {
			if p := recover(); p != nil {
				l.err = fmt.Errorf("%v", p)
			}
			out <- l
		}()
		l.etcd, l.err = embed.StartEtcd(c)
	}()
	return out
}

// errGaveUp stands for what fatal was told.
var errGaveUp = errors.New("etcd gave up")

// open starts etcd and waits until it is ready, or has ended again.
func (e *embedded) open(ctx context.Context, dir string, log *slog.Logger) (*embed.Etcd, error) {
	began, starting := time.Now(), launch(e.config(dir, log))
	var (
		s              *embed.Etcd
		ready, stopped <-chan struct{}
		errs           <-chan error
		err            error
	)
	limit := time.NewTimer(readyTimeout)
	defer limit.Stop()
	slow := time.NewTicker(slowOpen)
	defer slow.Stop()
	for err == nil {
		select {
		case l := <-starting:
			if starting = nil; l.err != nil {
				return nil, e.reason(l.err)
			}
			s = l.etcd
			ready, stopped, errs = s.Server.ReadyNotify(), s.Server.StopNotify(), s.Err()
		case <-ready:
			if err = behind(s); err == nil {
				return s, nil
			}
		case err = <-errs:
		case <-stopped:
			err = errGaveUp
		case <-e.failed:
			err = errGaveUp
		case <-limit.C:
			err = fmt.Errorf("not ready after %s", readyTimeout)
		case <-ctx.Done():
			err = ctx.Err()
		case <-slow.C:
			log.Info("the store is still being opened", "dir", e.dir, "since", time.Since(began).Round(time.Second))
			if s != nil && replayed(ctx, s) {
				err = behind(s)
			}
		}
	}
	finish(s, starting, err)
	return nil, e.reason(err)
}

// reason prefers what etcd said last to that it ended.
func (e *embedded) reason(err error) error {
	if cause := e.why(); cause != "" {
		return errors.New(cause)
	}
	return err
}

// replayed tells whether the server leads and has gone through all of its log.
func replayed(ctx context.Context, s *embed.Etcd) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return s.Server.LinearizableReadNotify(ctx) == nil
}

// behind tells a log, gone through to its end, that ends before what is in the
// database already: etcd would skip as many new writes as are missing there.
func behind(s *embed.Etcd) error {
	applied, _ := schema.ReadConsistentIndex(s.Server.Backend().ReadTx())
	if logged := s.Server.CommittedIndex(); logged < applied {
		return fmt.Errorf("its log was cut off: it ends with entry %d, the database has %d", logged, applied)
	}
	return nil
}

// finish closes an etcd that did not get ready because of err, within a bounded
// time: one that gave up may have lost the goroutines that would end it.
func finish(s *embed.Etcd, starting <-chan launched, err error) {
	limit := stopTimeout
	if errors.Is(err, errGaveUp) {
		limit = time.Second
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if starting != nil {
			s = (<-starting).etcd
		}
		if s != nil {
			s.Close()
		}
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// checkPages walks through all pages of the database: at one that is damaged etcd ends
// the process, from a goroutine in which nobody can stop that.
func checkPages(path string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // pages that point outside of the file
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("its database %s is damaged: %v", path, p)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil // it is made anew from the log
	case err != nil:
		return fmt.Errorf("its database %s is damaged: %w", path, err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			var before []byte
			return b.ForEach(func(k, _ []byte) error {
				if before != nil && bytes.Compare(before, k) >= 0 {
					return fmt.Errorf("the keys of its part %q are out of order", name)
				}
				before = k
				return nil
			})
		})
	})
	if err != nil {
		return fmt.Errorf("its database %s is damaged: %w", path, err)
	}
	return nil
}
