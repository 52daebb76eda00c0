package fake_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/runtime/fake"
	"github.com/onpath/onpath/runtime/runtimetest"
)

func TestExam(t *testing.T) {
	m := fake.NewMachine()
	runtimetest.Run(t, runtimetest.Subject{
		Open: func(*testing.T) onpath.Runtime { return fake.New(m) },
		Spec: func(command []string) onpath.FunctionSpec {
			return onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: "x", Command: command}}
		},
		Command: func(p runtimetest.Program) []string {
			switch p.Does {
			case runtimetest.Stubborn:
				return []string{"stubborn"}
			case runtimetest.Exit:
				return []string{"exit", strconv.Itoa(p.Code)}
			case runtimetest.Print:
				return []string{"print", p.Text}
			case runtimetest.Cat:
				return []string{"cat"}
			}
			return []string{"sleep"}
		},
		Kill:    func(_ *testing.T, p onpath.Process) { m.Kill(p.ID(), 137) },
		Noticed: time.Second,
	})
}
