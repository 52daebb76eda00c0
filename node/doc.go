// Package node is the agent on one machine: it takes the whole plan for the
// machine (onpath.NodePlan) and makes it so, idempotently.
//
// Instances: for each one the agent makes a network namespace and veth pairs,
// has the runtime start the process inside, probes it, restarts it with
// backoff, and takes everything away again when the plan no longer names it.
//
// Data path: the configuration in force is the plan's, less what this machine
// cannot carry yet (a vport whose device does not exist, an uplink that is
// refused), with the vports of instances that are not ready closed. A vport is
// closed before its process is started again, and rules go before what they
// point at.
//
// The parts are packages below this one. Each has a lock of its own and no way back to
// the agent: it follows plans, asks for rounds of the applier (base.Rounds), tells events
// (base.Part), and gives facts, which are copies. Here are the session (agent.go, ops.go),
// the plans (plans.go, setplan.go), the applier (apply.go) and the report (report.go).
//
// The agent is not needed for packets to flow: it can stop, crash or be
// replaced, and the next one finds the saved plan, adopts what runs and touches
// nothing that is as it should be. Off takes everything off the machine.
package node
