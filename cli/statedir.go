package cli

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/onpath/onpath"
)

// makeStateDir makes the folder that a key of the configuration names. What
// stands in its way is wrong input, what may pass is not.
func makeStateDir(key, dir string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		return nil
	}
	at, why := dir, err
	var of *fs.PathError
	if errors.As(err, &of) {
		at, why = of.Path, of.Err
	}
	e := onpath.Errorf(onpath.CodeInvalid, "the folder %s cannot be made: %w", dir, err)
	e.Field = key
	e.Message = "the folder " + dir + " cannot be made: " + at + ": " + why.Error()
	e.Remedy = "name a folder with --state-dir or " + key
	switch {
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EEXIST):
		e.Message = at + " is a file, and the folder for the state cannot be made there"
		e.Remedy = "name a folder with --state-dir or " + key + ", or remove the file"
	case errors.Is(err, fs.ErrPermission):
		e.Code = onpath.CodeForbidden
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Code, e.Remedy = onpath.CodeUnavailable, "make room on that disk (df shows how full it is)"
	case errors.Is(err, syscall.EROFS):
		e.Remedy = "that disk is mounted read-only: name another folder with --state-dir or " + key
	}
	return e
}
