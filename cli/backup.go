package cli

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/change"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/store/etcd"
)

func newBackup(g *global) *cobra.Command {
	images := false
	c := &cobra.Command{
		Use: "backup FILE", Short: "Copy all that the server keeps into a file, while it works", GroupID: groupRun,
		Long: `Copy all that the server on this machine keeps into a file, while it works: the store
as it is at one moment, the authority of certificates, the secret of tunnels, the
public log, the ledger's closed days, and with --images the images that were pushed. Keep the file as you keep keys: who has
it can be any node or user. onpath restore makes a server of it.`,
		Example: examples("sudo onpath backup /var/backups/onpath.tar", "sudo onpath backup --images /var/backups/onpath.tar"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if info, err := os.Stat(args[0]); err == nil && info.IsDir() {
				return badUsage("%s is a folder; name a file in it", args[0])
			}
			// A new file with a name that nobody can guess, or have made before: it has keys.
			f, err := os.CreateTemp(filepath.Dir(args[0]), "."+filepath.Base(args[0])+".")
			if err != nil {
				return unwritable("backup", args[0], err)
			}
			err = errors.Join(cl.Backup(c.Context(), images, f), f.Sync(), f.Close())
			if err == nil {
				err = os.Rename(f.Name(), args[0])
			}
			if err != nil {
				return errors.Join(err, os.Remove(f.Name()))
			}
			info, err := os.Stat(args[0])
			if err == nil {
				fmt.Fprintf(c.OutOrStdout(), "%s has %d bytes\n", args[0], info.Size())
			}
			return err
		},
	}
	c.Flags().BoolVar(&images, "images", false, "the images that were pushed, too")
	return c
}

func newRestore(*global) *cobra.Command {
	dir, keep := "", false
	c := &cobra.Command{
		Use: "restore FILE", Short: "Make a server's folder from a backup", GroupID: groupRun,
		Long: `Make a server's folder from a file that onpath backup wrote; the folder must be empty
or absent. Start the server then: nodes find it where they found the one before, at
its address, and their instances and flows go on. What was changed after the backup
is as it was before. Nodes of then are accepted; users, viewers, operators and bearer
tokens of then are refused until you resume them (onpath token resume), because some
may have been revoked since; --keep-users accepts them at once. Users of the server's
socket are accepted as ever. Join tokens are withdrawn: make new ones. Functions with
images that the backup does not have (it was made without --images) have to be
applied again.`,
		Example: examples("sudo onpath restore /var/backups/onpath.tar && sudo systemctl start onpath-server"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			about, suspended, err := restore(args[0], dir, keep)
			if err != nil {
				return needsSudo(c, err)
			}
			out := c.OutOrStdout()
			fmt.Fprintf(out, "%s is as the server was at %s\n", dir, about.At.Local().Format(time.DateTime))
			switch {
			case suspended == 1:
				fmt.Fprintln(out, "1 user or bearer token of then is refused until you resume it (onpath token resume)")
			case suspended > 1:
				fmt.Fprintf(out, "%d users and bearer tokens of then are refused until you resume them (onpath token resume)\n",
					suspended)
			case keep:
				fmt.Fprintln(out, "users and bearer tokens of then are accepted: revoke again whom you revoked since")
			}
			fmt.Fprintln(out, "nodes of then are accepted: revoke again those that you revoked since; make join tokens anew")
			start := "sudo systemctl start onpath-server"
			if dir != config.DefaultServerDir {
				start = "onpath server --state-dir " + dir
			}
			fmt.Fprintln(out, "start the server: "+start)
			return nil
		},
	}
	c.Flags().BoolVar(&keep, "keep-users", false, "accept users and bearer tokens of the backup at once")
	c.Flags().StringVar(&dir, "state-dir", config.DefaultServerDir, "the server's folder")
	return c
}

// unreadable says why a file could not be opened, by the name that the user typed.
func unreadable(err error, file string) error {
	why := err
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		why = e.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return badUsage("%s: there is no such file; correct the name", file)
	}
	return badUsage("%s: %w", file, why)
}

// restoredFile is in the folder of a server that has not started since it was restored.
const restoredFile = "restored"

// restore makes a folder whole, or leaves none. It counts whom the server does not accept yet.
func restore(file, dir string, keep bool) (about wire.Backup, suspended int, err error) {
	f, err := os.Open(file)
	if err != nil {
		return about, suspended, unreadable(err, file)
	}
	defer f.Close()
	if is, err := os.Stat(dir); err == nil && !is.IsDir() {
		return about, suspended, badUsage("--state-dir: %s is a file; name an empty or absent folder", dir)
	}
	if there, err := os.ReadDir(dir); err == nil && len(there) > 0 {
		e := onpath.Errorf(onpath.CodeExists, "%s is not empty", dir)
		e.Remedy = "stop the server and move its folder away, or name another one with --state-dir"
		return about, suspended, e
	}
	draft := filepath.Clean(dir) + ".restored"
	if err := errors.Join(os.RemoveAll(draft), os.MkdirAll(draft, 0o700)); err != nil {
		return about, suspended, err
	}
	defer os.RemoveAll(draft)
	if about, err = unpack(f, draft); err != nil {
		e := onpath.Errorf(onpath.CodeInvalid, "%s is not a backup, or not the whole of one: %w", file, plainEnd(err))
		e.Remedy = "name a file that onpath backup wrote"
		return about, suspended, e
	}
	snapshot := filepath.Join(draft, change.BackupStore)
	if err := etcd.Restore(filepath.Join(draft, "store"), snapshot); err != nil {
		return about, suspended, err
	}
	if suspended, err = withoutOthers(filepath.Join(draft, "auth"), keep); err != nil {
		return about, 0, err
	}
	err = errors.Join(os.Remove(snapshot), os.Remove(filepath.Join(draft, change.BackupAbout)),
		os.WriteFile(filepath.Join(draft, restoredFile), nil, 0o600))
	if err != nil {
		return about, suspended, err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return about, suspended, err
	}
	return about, suspended, os.Rename(draft, dir)
}

// withoutOthers has an authority's folder, if there is one, accept nobody who may have been
// revoked after the backup: join tokens are withdrawn, users and bearer tokens suspended, if they
// are not to be kept.
func withoutOthers(dir string, keep bool) (suspended int, err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	a, err := auth.OpenAuthority(dir, time.Now)
	if err != nil {
		return 0, err
	}
	return a.Restored(keep)
}

// plainEnd says in words what the reader of archives finds wrong.
func plainEnd(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it ends too soon")
	case errors.Is(err, tar.ErrHeader):
		return errors.New("it is no tar archive")
	}
	return err
}

// unpack writes the files of a backup into a folder.
func unpack(f io.Reader, dir string) (about wire.Backup, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return about, err
	}
	defer root.Close()
	found := map[string]bool{}
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return about, err
		}
		if err := root.MkdirAll(filepath.Dir(h.Name), 0o700); err != nil {
			return about, err
		}
		out, err := root.OpenFile(h.Name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, fs.FileMode(h.Mode).Perm())
		if err != nil {
			return about, err
		}
		_, err = io.Copy(out, t)
		if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
			return about, err
		}
		found[h.Name] = true
	}
	if !found[change.BackupAbout] || !found[change.BackupStore] {
		return about, errors.New("it has no store")
	}
	data, err := os.ReadFile(filepath.Join(dir, change.BackupAbout))
	if err != nil {
		return about, err
	}
	return about, json.Unmarshal(data, &about)
}
