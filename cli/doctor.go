package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/cli/doctor"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/runtime/container"
)

func newDoctor(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine has and lacks for onpath, in two seconds",
		Long: "Say what this machine has and lacks for onpath, in two seconds and without\nchanging anything. The exit code is 8 if " +
			"onpath cannot run here.",
		Example: examples("sudo onpath doctor", "sudo onpath doctor -o json"),
		GroupID: groupAround,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			checks := append(doctor.Checks(), containerParts, g.waitingNodes)
			list := doctor.Run(c.Context(), doctor.Machine{Data: config.DefaultNodeDir}, checks)
			err := g.print(c, list, func(w io.Writer) error {
				t := table.New("", "WHAT", "FOUND")
				for _, r := range list {
					found := r.Detail
					if r.Remedy != "" {
						found += " → " + r.Remedy
					}
					t.Row(string(r.Status), r.Name, found)
				}
				return t.WriteRows(w)
			})
			if err == nil && doctor.Worst(list) == doctor.Lack {
				return onpath.Errorf(onpath.CodeUnsupported,
					"onpath cannot run on this machine as it is; see the lines that begin with lack")
			}
			return err
		},
	}
}

// waitingNodes asks the server, if one is reached, for nodes that it gives nothing to do.
func (g *global) waitingNodes(ctx context.Context, _ doctor.Machine) (list []doctor.Result) {
	cl, err := g.client()
	if err != nil {
		return nil
	}
	defer cl.Close()
	nodes, _, err := cl.List(ctx, onpath.KindNode, "")
	if err != nil {
		return nil // a machine without a server, or one of no operator
	}
	for _, o := range nodes {
		n := o.(*onpath.Node)
		i := slices.IndexFunc(n.Status.Conditions, func(c onpath.Condition) bool { return c.Type == onpath.ConditionAccepted })
		if !n.Accepted() && i >= 0 {
			why := "waits: " + n.Status.Conditions[i].Message
			list = append(list, doctor.Result{Name: "node " + n.Metadata.Name, Status: doctor.Warn, Detail: why})
		}
	}
	return list
}

// containerParts asks the container runtime what it finds.
func containerParts(ctx context.Context, _ doctor.Machine) []doctor.Result {
	var list []doctor.Result
	for _, p := range container.Probe(ctx) {
		if p.Name == "cgroups" {
			continue // looked at already
		}
		r := doctor.Result{Name: p.Name, Status: doctor.OK, Detail: p.Detail}
		if !p.Found {
			r.Status = doctor.Warn
			if p.Required {
				r.Remedy = fmt.Sprintf("functions of kind container need it: install %s", p.Name)
			}
		}
		if r.Detail == "" {
			r.Detail = "found"
		}
		list = append(list, r)
	}
	return list
}
