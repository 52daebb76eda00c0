package container

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/userns"
)

// writeSecrets writes files, as owner, into the tmpfs that a new instance has for them, while
// its init still waits. Symbolic links of the image are followed inside the instance, and nothing is
// written if another file system is there.
func writeSecrets(pid int, owner uint32, files map[string][]byte) error {
	if len(files) == 0 {
		return nil
	}
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("look into the instance: %w", err)
	}
	defer unix.Close(root)
	dir, err := unix.Openat2(root, strings.TrimPrefix(onpath.SecretsFolder, "/"), &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return fmt.Errorf("look for %s in the instance: %w", onpath.SecretsFolder, err)
	}
	defer unix.Close(dir)
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%s of the instance is not in memory (%w)", onpath.SecretsFolder, err)
	}
	return userns.Write(owner, func() error { return writeAll(dir, files) })
}

// writeAll writes files into the folder that dir is open at.
func writeAll(dir int, files map[string][]byte) error {
	for name, content := range files {
		fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
		if err != nil {
			return fmt.Errorf("write secret %s: %w", name, err)
		}
		f := os.NewFile(uintptr(fd), name)
		_, err = f.Write(content)
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return fmt.Errorf("write secret %s: %w", name, err)
		}
	}
	return nil
}
