package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// An instance is told how long flows may rest before the data path forgets them,
// so that its own time-outs need not disagree: in environment variables when it
// starts, and in a file that follows changes while it runs. All are seconds.

// idleFile is where containers find the idle times.
const idleFile = "/run/onpath/flows.json"

// idleOf are the times for an instance; what the plan does not say is default.
func idleOf(p *onpath.InstancePlan) onpath.Idle { return p.Idle.OrDefault() }

// seconds rounds up: a function that keeps a flow longer loses nothing.
func seconds(d onpath.Duration) int64 {
	return int64((time.Duration(d) + time.Second - 1) / time.Second)
}

// idleContent is the file.
func idleContent(i onpath.Idle) string {
	times := map[string]int64{}
	for _, t := range i.Each() {
		times[t.Name] = seconds(t.Time)
	}
	data, err := json.MarshalIndent(map[string]any{"idle": times}, "", "  ")
	if err != nil {
		panic("node: idle times: " + err.Error()) // only numbers come here
	}
	return string(data) + "\n"
}

// informed adds the idle times to what a container is started with. Variables that
// the function or its deployment sets stay as they are.
func informed(s onpath.FunctionSpec, i onpath.Idle) onpath.FunctionSpec {
	t := s.Traits()
	if !t.Informed {
		return s
	}
	env := onpath.Env{}
	for _, t := range i.Each() {
		env[t.Env] = strconv.FormatInt(seconds(t.Time), 10)
	}
	maps.Copy(env, t.Env)
	return s.With(env, map[string]onpath.File{idleFile: {Content: idleContent(i)}})
}

// inform tells a running container the idle times.
func inform(pid int, netns string, i onpath.Idle) error {
	return renew(pid, netns, idleFile, idleContent(i), 0o644)
}

// renew replaces a file in a running container, whose first process has the number pid and
// lives in the network namespace netns.
func renew(pid int, netns, file, content string, mode uint32) error {
	if pid == 0 {
		return nil
	}
	root, err := rootOf(pid, netns)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	// The container may have put links in the way: they end inside it.
	dir, err := unix.Openat2(root, path.Dir(file)[1:], &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return fmt.Errorf("open %s in the container: %w", path.Dir(file), err)
	}
	defer unix.Close(dir)
	fresh := "." + path.Base(file) + ".new"
	if err := unix.Unlinkat(dir, fresh, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("write %s in the container: %w", file, err)
	}
	fd, err := unix.Openat(dir, fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return fmt.Errorf("write %s in the container: %w", file, err)
	}
	_, err = unix.Write(fd, []byte(content))
	var owner unix.Stat_t // of the old file, in a namespace of users too
	if errors.Join(err, unix.Fstatat(dir, path.Base(file), &owner, unix.AT_SYMLINK_NOFOLLOW)) == nil {
		err = unix.Fchown(fd, int(owner.Uid), int(owner.Gid))
	}
	err = errors.Join(err, unix.Fchmod(fd, mode), unix.Close(fd))
	if err == nil {
		err = unix.Renameat(dir, fresh, dir, path.Base(file))
	}
	if err != nil {
		return fmt.Errorf("write %s in the container: %w", file, err)
	}
	return nil
}

// rootOf opens the root directory of a container's first process. Numbers of
// processes are used again, and a container that is just being started still has
// the machine's root: what is not the container's own is refused.
func rootOf(pid int, netns string) (root int, err error) {
	// All that is asked of this folder is about one process, or fails once it ended.
	proc, err := unix.Open(fmt.Sprintf("/proc/%d", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("find the container's process: %w", err)
	}
	defer unix.Close(proc)
	same, err := sameFile(proc, "ns/net", unix.AT_FDCWD, netns)
	if err != nil {
		return -1, fmt.Errorf("compare the container's network namespace: %w", err)
	}
	if !same {
		return -1, fmt.Errorf("process %d does not live in the container's network namespace %s", pid, netns)
	}
	root, err = unix.Openat(proc, "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the container's files: %w", err)
	}
	own, err := sameFile(root, "", unix.AT_FDCWD, "/")
	machines, _ := sameFile(root, "", unix.AT_FDCWD, "/proc/1/root") // not everybody may look
	if err == nil && (own || machines) {
		err = fmt.Errorf("process %d has the machine's root directory, not the container's", pid)
	}
	if err != nil {
		unix.Close(root)
		return -1, fmt.Errorf("open the container's files: %w", err)
	}
	return root, nil
}

// sameFile reports whether two paths, each from an open folder on, lead to one file;
// "" is the folder itself.
func sameFile(dirA int, pathA string, dirB int, pathB string) (bool, error) {
	var a, b unix.Stat_t
	err := errors.Join(unix.Fstatat(dirA, pathA, &a, unix.AT_EMPTY_PATH), unix.Fstatat(dirB, pathB, &b, unix.AT_EMPTY_PATH))
	return a.Dev == b.Dev && a.Ino == b.Ino, err
}
