package onpath

// Validate implements Object.
func (t *Tenant) Validate() error { return nil }

// Validate implements Object.
func (c *Cloudlet) Validate() error { return nil }

// Validate implements Object.
func (n *Node) Validate() error { return nil }

// Validate implements Object.
func (h *Hosts) Validate() error { return nil }

// Validate implements Object.
func (f *Function) Validate() error { return nil }

// Validate implements Object.
func (d *Deployment) Validate() error { return nil }

// Validate implements Object.
func (c *Chain) Validate() error { return nil }

// Validate implements Object.
func (i *Instance) Validate() error { return nil }

// Validate implements Object.
func (e *Event) Validate() error { return nil }
