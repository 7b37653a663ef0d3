package client

import (
	"bytes"
	"compress/zlib"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// Origin is who asks for a unit, and for which time: catalogd lets a higher try of one
// owner take over that owner's own attempt at once.
type Origin struct {
	Owner string
	Try   int
}

// maxOwner is the contract's bound.
const maxOwner = 256

// FindOrigin reads owner and try from what the orchestrator put into the environment,
// the innermost first; without one the owner is user and host. get is os.Getenv.
//
// Sources: Airflow sets AIRFLOW_CTX_…; Dagster DAGSTER_PIPES_CONTEXT for what Pipes
// starts, and DAGSTER_RUN_… in the containers of a step; Slurm SLURM_…; Kubernetes
// KUBERNETES_SERVICE_HOST and the pod's name as HOSTNAME, and counts no tries; Celery sets
// nothing, so tasks hand over CELERY_TASK_ID and CELERY_TASK_RETRIES.
func FindOrigin(get func(string) string) Origin {
	for _, look := range []func(func(string) string) (string, string){airflow, dagster, celery, slurm, kubernetes} {
		if owner, try := look(get); owner != "" {
			n, err := strconv.Atoi(try)
			if err != nil || n < 0 || n > 1<<30 {
				n = 0
			}
			return Origin{Owner: shorten(owner), Try: n}
		}
	}
	return Origin{Owner: shorten(here())}
}

func airflow(get func(string) string) (owner, try string) {
	dag, task := get("AIRFLOW_CTX_DAG_ID"), get("AIRFLOW_CTX_TASK_ID")
	if dag == "" || task == "" {
		return "", ""
	}
	owner = "airflow:" + path(dag, get("AIRFLOW_CTX_DAG_RUN_ID"), task)
	// Older ones do not export the index of a mapped task.
	if index := get("AIRFLOW_CTX_MAP_INDEX"); index != "" && index != "-1" {
		owner += "[" + index + "]"
	}
	return owner, get("AIRFLOW_CTX_TRY_NUMBER")
}

func dagster(get func(string) string) (owner, try string) {
	if pipes, ok := dagsterPipes(get("DAGSTER_PIPES_CONTEXT")); ok {
		parts := append([]string{pipes.Job, pipes.Run}, pipes.Assets...)
		return "dagster:" + path(append(parts, pipes.Partition)...), strconv.Itoa(pipes.Retry)
	}
	if job, step := get("DAGSTER_RUN_JOB_NAME"), get("DAGSTER_RUN_STEP_KEY"); job != "" && step != "" {
		return "dagster:" + path(job, get("DAGSTER_RUN_ID"), step), get("DAGSTER_RETRY_NUMBER")
	}
	return "", ""
}

type pipesContext struct {
	Run       string   `json:"run_id"`
	Job       string   `json:"job_name"`
	Retry     int      `json:"retry_number"`
	Assets    []string `json:"asset_keys"`
	Partition string   `json:"partition_key"`
}

// dagsterPipes reads the context of Dagster Pipes: base64 of zlib of JSON, which holds
// the context or the path of a file that does.
func dagsterPipes(param string) (pipesContext, bool) {
	packed, err := base64.StdEncoding.DecodeString(param)
	if err != nil || len(packed) == 0 {
		return pipesContext{}, false
	}
	unpacked, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return pipesContext{}, false
	}
	const most = 1 << 20
	var where struct {
		Data *pipesContext `json:"data"`
		Path string        `json:"path"`
	}
	if json.NewDecoder(io.LimitReader(unpacked, most)).Decode(&where) != nil {
		return pipesContext{}, false
	}
	if where.Data == nil && where.Path != "" {
		f, err := os.Open(where.Path)
		if err != nil {
			return pipesContext{}, false
		}
		defer f.Close()
		if json.NewDecoder(io.LimitReader(f, most)).Decode(&where.Data) != nil {
			return pipesContext{}, false
		}
	}
	if where.Data == nil || where.Data.Run == "" {
		return pipesContext{}, false
	}
	return *where.Data, true
}

func celery(get func(string) string) (owner, try string) {
	if id := get("CELERY_TASK_ID"); id != "" {
		return "celery:" + id, get("CELERY_TASK_RETRIES")
	}
	return "", ""
}

func slurm(get func(string) string) (owner, try string) {
	job := get("SLURM_JOB_ID")
	if array := get("SLURM_ARRAY_JOB_ID"); array != "" {
		job = array + "_" + get("SLURM_ARRAY_TASK_ID")
	}
	if job == "" {
		return "", ""
	}
	return "slurm:" + path(get("SLURM_CLUSTER_NAME"), job, get("SLURM_PROCID")), get("SLURM_RESTART_COUNT")
}

func kubernetes(get func(string) string) (owner, try string) {
	pod := get("POD_NAME")
	if pod == "" {
		pod = get("HOSTNAME")
	}
	if get("KUBERNETES_SERVICE_HOST") == "" || pod == "" {
		return "", ""
	}
	namespace := get("POD_NAMESPACE")
	if namespace == "" {
		if text, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace"); err == nil {
			namespace = strings.TrimSpace(string(text))
		}
	}
	return "kubernetes:" + path(namespace, pod), ""
}

func here() string {
	name := "nobody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return name + "@" + host
}

// path joins what there is.
func path(parts ...string) string {
	var there []string
	for _, p := range parts {
		if p != "" {
			there = append(there, p)
		}
	}
	return strings.Join(there, "/")
}

// shorten keeps a name within the contract, and different names different.
func shorten(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(name, "_"))
	if len(name) <= maxOwner {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return strings.ToValidUTF8(name[:maxOwner-17], "") + "~" + hex.EncodeToString(sum[:8])
}
