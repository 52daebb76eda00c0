// Package keeper runs one program in namespaces of its own, keeps what it prints
// (internal/boundlog) and how it ends, and outlives who started it.
//
// A keeper is the running program once more. It takes little memory, because it is
// decided before most packages begin; it ends with the program that it keeps.
package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/boundlog"
)

// command is the first argument of a keeper.
const command = "onpath-keeper"

// The files in a keeper's folder.
const (
	orderFile = "order"
	pidFile   = "pid"  // of the program, and when it began
	exitFile  = "exit" // its code, and when it ended, in ns since 1970
)

// Order is what to run.
type Order struct {
	Program string   `json:"program"`
	Args    []string `json:"args"`
	// MaxLog is that of each of the log's two files, in bytes.
	MaxLog int64 `json:"maxLog"`
}

// The descriptors of a keeper: what its program inherits, as 3, and a pipe on which it
// waits for the order to begin, and says that it has.
const (
	inherited = 3 + iota
	begin
	begun
)

// here is the folder of a keeper for itself: others may give it another name.
const here = "."

func init() {
	if len(os.Args) != 2 || os.Args[1] != command {
		return
	}
	runtime.LockOSThread() // the program ends with this thread
	if err := keep(); err != nil {
		fmt.Fprintln(os.Stderr, "onpath keeper:", err)
		unix.Exit(1)
	}
	unix.Exit(0)
}

// Keeper is a keeper that waits.
type Keeper struct {
	Pid   int
	cmd   *exec.Cmd
	begin *os.File
	begun *os.File
	dir   string
}

// Start starts a keeper with its folder, which may be renamed later; its program inherits f
// as descriptor 3.
func Start(dir string, o Order, f *os.File) (*Keeper, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, orderFile), b, 0o600); err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	r1, w1, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	r2, w2, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a keeper: %w", err), r1.Close(), w1.Close())
	}
	cmd := exec.Command(self, command)
	cmd.ExtraFiles = []*os.File{f, r1, w2}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = dir
	err = cmd.Start()
	_, _ = r1.Close(), w2.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a keeper: %w", err), w1.Close(), r2.Close())
	}
	go func() { _ = cmd.Wait() }()
	return &Keeper{Pid: cmd.Process.Pid, cmd: cmd, begin: w1, begun: r2, dir: dir}, nil
}

// Begin has the keeper start its program, and gives the program's number.
func (k *Keeper) Begin() (pid int, err error) {
	defer k.begun.Close()
	_, err = k.begin.Write([]byte{1})
	if err = errors.Join(err, k.begin.Close()); err != nil {
		return 0, fmt.Errorf("begin: %w", err)
	}
	b := make([]byte, 1024)
	n, _ := k.begun.Read(b)
	said := string(b[:n])
	if pid, err = strconv.Atoi(said); err != nil {
		return 0, fmt.Errorf("the keeper in %s could not begin: %s", k.dir, said)
	}
	return pid, nil
}

// Cancel ends a keeper that waits.
func (k *Keeper) Cancel() {
	_ = k.cmd.Process.Kill()
	_, _ = k.begin.Close(), k.begun.Close()
}

func keep() error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	unix.CloseOnExec(begin)
	unix.CloseOnExec(begun)
	var one [1]byte
	if n, err := unix.Read(begin, one[:]); n != 1 {
		return err // cancelled
	}
	said := os.NewFile(begun, "begun")
	b, err := os.ReadFile(orderFile)
	var o Order
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	var log *boundlog.File
	if err == nil {
		log, err = boundlog.Open(here, o.MaxLog, time.Now)
	}
	if err != nil {
		_, _ = said.WriteString(err.Error())
		return err
	}
	pipes, pid, err := launch(o)
	if err == nil {
		err = os.WriteFile(pidFile, fmt.Appendf(nil, "%d %s", pid, beginning(pid)), 0o600)
	}
	if err != nil {
		_, _ = said.WriteString(err.Error())
		return err
	}
	_, _ = said.WriteString(strconv.Itoa(pid))
	_ = said.Close()
	_ = unix.Close(inherited)
	err = log.Drain(pipes)
	return errors.Join(err, await(pid))
}

// launch starts the program as the first of new namespaces, and gives the ends of its
// output.
func launch(o Order) (pipes []int, pid int, err error) {
	var out, errs [2]int
	if err := errors.Join(unix.Pipe2(out[:], unix.O_CLOEXEC), unix.Pipe2(errs[:], unix.O_CLOEXEC)); err != nil {
		return nil, 0, err
	}
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	pid, err = syscall.ForkExec(o.Program, append([]string{o.Program}, o.Args...), &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{uintptr(null), uintptr(out[1]), uintptr(errs[1]), inherited},
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
			Pdeathsig:  syscall.SIGKILL,
		},
	})
	_, _, _ = unix.Close(out[1]), unix.Close(errs[1]), unix.Close(null)
	if err != nil {
		return nil, 0, fmt.Errorf("start %s: %w", o.Program, err)
	}
	return []int{out[0], errs[0]}, pid, nil
}

// await notes how the program ends.
func await(pid int) error {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	const tmp = exitFile + ".new"
	if err := os.WriteFile(tmp, fmt.Appendf(nil, "%d %d", code, time.Now().UnixNano()), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, exitFile)
}

// beginning is when a process began, in the kernel's ticks since the machine did; "" if
// there is none.
func beginning(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	if f := strings.Fields(rest); len(f) > 19 && f[0] != "Z" {
		return f[19]
	}
	return ""
}

// Running is the number of the program kept in a folder; 0 if it has ended or was
// never begun.
func Running(dir string) int {
	b, err := os.ReadFile(filepath.Join(dir, pidFile))
	if err != nil {
		return 0
	}
	number, began, _ := strings.Cut(string(b), " ")
	pid, _ := strconv.Atoi(number)
	if pid == 0 || began == "" || beginning(pid) != began {
		return 0
	}
	return pid
}

// Exit is how the program ended; ok is false if nobody has noted it.
func Exit(dir string) (code int, at time.Time, ok bool) {
	b, err := os.ReadFile(filepath.Join(dir, exitFile))
	if err != nil {
		return 0, time.Time{}, false
	}
	var ns int64
	if _, err := fmt.Sscanf(string(b), "%d %d", &code, &ns); err != nil {
		return 0, time.Time{}, false
	}
	return code, time.Unix(0, ns), true
}
