package main

// kindsElsewhere are kinds of kubectl's and docker's, and what comes near them here.
var kindsElsewhere = map[string]string{
	"containers": "onpath get instances lists what runs",
	"container":  "onpath get instances lists what runs",
	"images":     "images stand in functions: onpath get functions -o wide",
	"namespaces": "what namespaces are elsewhere are tenants: onpath get tenants",
	"namespace":  "what namespaces are elsewhere are tenants: onpath get tenants",
	"ns":         "what namespaces are elsewhere are tenants: onpath get tenants",
	"pod":        "onpath get instances lists what runs",
	"pods":       "onpath get instances lists what runs",
	"po":         "onpath get instances lists what runs",
	"services":   "a chain says which traffic passes through what: onpath get chains",
	"service":    "a chain says which traffic passes through what: onpath get chains",
	"svc":        "a chain says which traffic passes through what: onpath get chains",
}

// flagsElsewhere are flags of kubectl's, and what does their work here.
var flagsElsewhere = map[string]string{
	"-A":               "without -t it tells of all tenants that you may see",
	"--all-namespaces": "without -t it tells of all tenants that you may see",
	"-n":               "write -t TENANT, or the name as TENANT/NAME",
	"--namespace":      "write -t TENANT, or the name as TENANT/NAME",
	"--sort-by":        "-o json prints all that a program needs to sort by",
	"--since-time":     "write how long ago: --since 5m",
	"logs -n":          "write --tail N",
	"--context":        "write --server https://HOST:PORT",
	"--kubeconfig":     "write --server https://HOST:PORT",
}

// elsewhere are commands of kubectl, docker and tailscale, and what does their work here.
var elsewhere = map[string]string{
	"annotate":      "write metadata.labels in its file and apply it",
	"api-resources": "onpath explain lists the kinds",
	"build":         "onpath images build RECIPE makes an image, onpath function build FILE an eBPF function",
	"cluster-info":  "onpath version and onpath get nodes tell of the server and its nodes",
	"config":        "onpath join TOKEN joins a server, and --server names another one",
	"cp":            "onpath exec INSTANCE -- cat FILE > FILE copies one out",
	"create":        "onpath apply -f FILE creates objects",
	"debug":         "onpath exec INSTANCE -- sh, onpath trace, onpath capture",
	"down":          "onpath node off takes onpath off this machine",
	"edit":          "onpath get KIND NAME -o yaml > FILE, edit it, onpath apply -f FILE",
	"expose":        "a chain says which traffic passes through its functions: onpath explain chain.spec",
	"inspect":       "onpath describe KIND NAME, or onpath get KIND NAME -o json",
	"kill":          "onpath fault kills an instance for a test; onpath delete takes its chain or deployment away",
	"label":         "write metadata.labels in its file and apply it",
	"login":         "onpath join TOKEN joins a server",
	"logout":        "onpath join TOKEN joins another server; onpath revoke takes a user's certificate back",
	"netcheck":      "onpath doctor says what this machine has and lacks, onpath measure how far nodes are from each other",
	"patch":         "onpath get KIND NAME -o yaml > FILE, edit it, onpath apply -f FILE",
	"ping":          "onpath measure shows round trips between nodes",
	"port-forward":  "onpath exec INSTANCE runs a program beside it, in its network",
	"ps":            "onpath get instances lists what runs",
	"pull":          "nodes pull images by themselves; apply pushes those that are files",
	"push":          "onpath apply -f FILE pushes the images that it names as files",
	"replace":       "onpath apply -f FILE replaces what differs",
	"restart":       "instances are started again by themselves; onpath fault kills one",
	"rollout":       "onpath apply --wait waits, onpath history shows versions, onpath rollback goes back to one",
	"run":           "write a Function and a Chain, and onpath apply -f FILE (examples/own has both)",
	"scale":         "write spec.through[].instances of the chain, or spec.instances of the deployment, and apply it",
	"set":           "onpath get KIND NAME -o yaml > FILE, edit it, onpath apply -f FILE",
	"start":         "what is applied is started by itself; onpath describe chain NAME says what it waits for",
	"stats":         "onpath top shows what instances use and carry",
	"status":        "onpath get all, or onpath describe KIND NAME",
	"stop":          "onpath delete takes a chain or deployment away; spec.disabled: true takes a chain out of traffic",
	"wait":          "onpath apply -f FILE --wait waits until it is in force",
}
