package server

import (
	"net/http"
	"reflect"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/fleet"
	"github.com/outcrop-cloud/outcrop/internal/gateway"
)

// gatewayOperation is one route of the gateway: what it takes and answers, for
// the document, and the verb.
type gatewayOperation struct {
	method, path, id, summary string
	permission                fleet.Permission // empty: an operator's only
	status                    int
	in, out                   reflect.Type // in is nil without a body
	query                     []queryParam
	idempotent, noApp         bool
	verb                      gatewayVerb
}

// queryParam is one parameter of a query, with its type or its words.
type queryParam struct {
	name, doc string
	integer   bool
	words     []string
}

var pageParams = []queryParam{
	{name: "limit", doc: "1 to 1000; 50 when omitted.", integer: true},
	{name: "offset", doc: "How many to skip.", integer: true},
}

// gatewayOperations is the gateway as a table. A verb checks its permission
// itself; here it stands for the document.
func gatewayOperations(g *gateway.Gateway) []gatewayOperation {
	get, post, put, patch, del := http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	const host, work = "/v1/hosts/{host}", "/v1/work/{workId}"
	return []gatewayOperation{
		{method: post, path: "/v1/hosts/heartbeat", id: "record-host-heartbeat", summary: "Report a heartbeat from a runner host", permission: fleet.HostsIngest, status: 200,
			in: typeOf[api.HostHeartbeat](), out: typeOf[api.Data[api.HeartbeatHost]](),
			verb: func(c *gatewayCall) (any, error) { return data(g.Heartbeat(c.Context(), c.who, c.body)) }},
		{method: get, path: "/v1/hosts", id: "list-hosts", summary: "List runner hosts by name, with their status", permission: fleet.HostsRead, status: 200,
			out: typeOf[api.DataList[api.RunnerHost]](), query: append([]queryParam{
				{name: "status", doc: "Only hosts with this status.", words: words(fleet.HostStatuses)},
				{name: "after", doc: "Begin behind the host of this name: unlike an offset it costs the same at every place of the list."}}, pageParams...),
			verb: func(c *gatewayCall) (any, error) { return whole(g.ListHosts(c.Context(), c.who, c.URL.Query())) }},
		{method: get, path: host, id: "get-host", summary: "Get a runner host, the reason for its status, and what is to be done by a date", permission: fleet.HostsRead, status: 200,
			out:  typeOf[api.Data[api.HostDetail]](),
			verb: func(c *gatewayCall) (any, error) { return data(g.GetHost(c.Context(), c.who, c.PathValue("host"))) }},
		{method: del, path: host, id: "delete-host", summary: "Forget a runner host that is gone", permission: fleet.HostsDelete, status: 200,
			out: typeOf[api.Data[api.Deleted]](),
			verb: func(c *gatewayCall) (any, error) {
				return deleted(c.PathValue("host"), g.DeleteHost(c.Context(), c.who, c.PathValue("host")))
			}},
		{method: get, path: "/v1/hosts/update-setting", id: "get-update-setting", summary: "Get who picks the version of the app's runners", permission: fleet.HostsRead, status: 200,
			out:  typeOf[api.Data[api.UpdateSetting]](),
			verb: func(c *gatewayCall) (any, error) { return data(g.GetUpdateSetting(c.Context(), c.who)) }},
		{method: put, path: "/v1/hosts/update-setting", id: "put-update-setting", summary: "Follow, pause or pin the version of the app's runners", permission: fleet.HostsUpdate, status: 200,
			in: typeOf[api.PutUpdateSetting](), out: typeOf[api.Data[api.UpdateSetting]](),
			verb: func(c *gatewayCall) (any, error) { return data(g.PutUpdateSetting(c.Context(), c.who, c.body)) }},

		{method: post, path: "/v1/apps", id: "create-app", summary: "Make an app", status: 201, noApp: true, idempotent: true,
			in: typeOf[api.CreateApp](), out: typeOf[api.Data[api.App]](),
			verb: func(c *gatewayCall) (any, error) {
				return data(g.CreateApp(c.Context(), c.who, c.body, c.idempotencyKey()))
			}},
		{method: get, path: "/v1/apps", id: "list-apps", summary: "List apps, oldest first", status: 200, noApp: true, query: pageParams,
			out:  typeOf[api.DataList[api.App]](),
			verb: func(c *gatewayCall) (any, error) { return whole(g.ListApps(c.Context(), c.who, c.URL.Query())) }},
		{method: get, path: "/v1/apps/{appId}", id: "get-app", summary: "Get an app", permission: fleet.AppRead, status: 200, noApp: true,
			out:  typeOf[api.Data[api.App]](),
			verb: func(c *gatewayCall) (any, error) { return data(g.GetApp(c.Context(), c.who, c.PathValue("appId"))) }},
		{method: patch, path: "/v1/apps/{appId}", id: "rename-app", summary: "Give an app another name", permission: fleet.AppUpdate, status: 200, noApp: true,
			in: typeOf[api.CreateApp](), out: typeOf[api.Data[api.App]](),
			verb: func(c *gatewayCall) (any, error) {
				return data(g.RenameApp(c.Context(), c.who, c.PathValue("appId"), c.body))
			}},
		{method: del, path: "/v1/apps/{appId}", id: "delete-app", summary: "Delete an app without hosts and unfinished work; its keys end", status: 200, noApp: true,
			out: typeOf[api.Data[api.Deleted]](),
			verb: func(c *gatewayCall) (any, error) {
				return deleted(c.PathValue("appId"), g.DeleteApp(c.Context(), c.who, c.PathValue("appId")))
			}},

		{method: post, path: "/v1/api-keys", id: "create-api-key", summary: "Make an API key; it is shown once", permission: fleet.APIKeyInsert, status: 201, idempotent: true,
			in: typeOf[api.CreateAPIKey](), out: typeOf[api.Data[api.NewAPIKey]](),
			verb: func(c *gatewayCall) (any, error) {
				return data(g.CreateKey(c.Context(), c.who, c.body, c.idempotencyKey()))
			}},
		{method: get, path: "/v1/api-keys", id: "list-api-keys", summary: "List the app's API keys, oldest first", permission: fleet.APIKeyRead, status: 200, query: pageParams,
			out:  typeOf[api.DataList[api.APIKey]](),
			verb: func(c *gatewayCall) (any, error) { return whole(g.ListKeys(c.Context(), c.who, c.URL.Query())) }},
		{method: del, path: "/v1/api-keys/{keyId}", id: "revoke-api-key", summary: "Revoke an API key at once", permission: fleet.APIKeyDelete, status: 200,
			out: typeOf[api.Data[api.APIKey]](),
			verb: func(c *gatewayCall) (any, error) {
				return data(g.RevokeKey(c.Context(), c.who, c.PathValue("keyId")))
			}},

		{method: post, path: "/v1/work", id: "queue-work", summary: "Queue a job", permission: fleet.WorkInsert, status: 201, idempotent: true,
			in: typeOf[api.QueueWork](), out: typeOf[api.Data[api.Work]](),
			verb: func(c *gatewayCall) (any, error) {
				return data(g.QueueWork(c.Context(), c.who, c.body, c.idempotencyKey()))
			}},
		{method: get, path: "/v1/work", id: "list-work", summary: "List the app's jobs, oldest first", permission: fleet.WorkRead, status: 200,
			out:   typeOf[api.DataList[api.Work]](),
			query: append([]queryParam{{name: "state", doc: "Only jobs in this state.", words: words(fleet.JobStates)}}, pageParams...),
			verb:  func(c *gatewayCall) (any, error) { return whole(g.ListWork(c.Context(), c.who, c.URL.Query())) }},
		{method: get, path: work, id: "get-work", summary: "Get a job", permission: fleet.WorkRead, status: 200,
			out:  typeOf[api.Data[api.Work]](),
			verb: func(c *gatewayCall) (any, error) { return data(g.GetWork(c.Context(), c.who, c.PathValue("workId"))) }},
		{method: post, path: work + "/cancel", id: "cancel-work", summary: "Cancel a job", permission: fleet.WorkCancel, status: 200,
			out: typeOf[api.Data[api.Work]](),
			verb: func(c *gatewayCall) (any, error) {
				return data(g.CancelWork(c.Context(), c.who, c.PathValue("workId")))
			}},
		{method: get, path: work + "/logs", id: "get-work-log", summary: "Get a part of the log of a job's last attempt", permission: fleet.WorkRead, status: 200,
			out: typeOf[api.Data[api.WorkLog]](), query: []queryParam{{name: "offset", doc: "Of the first byte wanted.", integer: true}},
			verb: func(c *gatewayCall) (any, error) {
				return data(g.WorkLog(c.Context(), c.who, c.PathValue("workId"), c.URL.Query()))
			}},
		{method: post, path: "/v1/work/claims", id: "claim-work", summary: "Ask for a job to run on a host", permission: fleet.WorkClaim, status: 200, idempotent: true,
			in: typeOf[api.ClaimWork](), out: typeOf[api.ClaimAnswer](),
			verb: func(c *gatewayCall) (any, error) {
				return whole(g.ClaimWork(c.Context(), c.who, c.body, c.idempotencyKey()))
			}},
		{method: post, path: work + "/renew", id: "renew-work", summary: "Keep the lease of a job", permission: fleet.WorkClaim, status: 200,
			in: typeOf[api.RenewWork](), out: typeOf[api.Data[api.RenewedWork]](),
			verb: func(c *gatewayCall) (any, error) {
				return data(g.RenewWork(c.Context(), c.who, c.PathValue("workId"), c.body))
			}},
		{method: post, path: work + "/complete", id: "complete-work", summary: "Report the exit code of a job's command", permission: fleet.WorkClaim, status: 200,
			in: typeOf[api.CompleteWork](), out: typeOf[api.Data[api.Work]](),
			verb: func(c *gatewayCall) (any, error) {
				return data(g.CompleteWork(c.Context(), c.who, c.PathValue("workId"), c.body))
			}},
		{method: post, path: work + "/fail", id: "fail-work", summary: "Report that the host could not run a job's command to its end", permission: fleet.WorkClaim, status: 200,
			in: typeOf[api.FailWork](), out: typeOf[api.Data[api.Work]](),
			verb: func(c *gatewayCall) (any, error) {
				return data(g.FailWork(c.Context(), c.who, c.PathValue("workId"), c.body))
			}},
		{method: post, path: work + "/logs", id: "append-work-log", summary: "Add output of a job's command", permission: fleet.WorkClaim, status: 200,
			in: typeOf[api.AppendWorkLog](), out: typeOf[api.Data[api.WorkLogPosition]](),
			verb: func(c *gatewayCall) (any, error) {
				return data(g.AppendWorkLog(c.Context(), c.who, c.PathValue("workId"), c.body))
			}},
	}
}

func words[T ~string](in []T) []string {
	out := make([]string, len(in))
	for i, w := range in {
		out[i] = string(w)
	}
	return out
}
