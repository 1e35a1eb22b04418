package control

import "context"

// The loops that a test runs by hand, as their tickers keep real time.

func (c *Control) Expire(ctx context.Context) error    { return c.expire(ctx) }
func (c *Control) Forget(ctx context.Context) error    { return c.forget(ctx) }
func (c *Control) Judge(ctx context.Context) error     { return c.judgeNodes(ctx) }
func (c *Control) Place(ctx context.Context) error     { return c.placeWaiting(ctx) }
func (c *Control) Converge(ctx context.Context) error  { return c.convergeDesired(ctx) }
func (c *Control) TendMoves(ctx context.Context) error { return c.tendMoves(ctx) }
func (c *Control) Drain(ctx context.Context) error     { return c.driveDrains(ctx) }
