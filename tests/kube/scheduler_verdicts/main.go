// Verdicts of kube-scheduler's own plugins on clusters given as JSON, without an API server.
//
// Each line of the input is one cluster with pods to judge, each line of the output contains the verdicts for these
// pods. A pod with scheduling gates is unresolvable on every node, because kube-scheduler does not queue it. For other
// pods, the PreFilter and Filter plugins of the default profile run on every node. kube-scheduler ends at the first
// plugin that rejects a node; this program runs all of them, so that the verdict does not depend on their order. The
// Score plugins rate the feasible nodes. If no node is feasible, the preemption plugin selects victims on every node
// where preemption may help, in a dry run.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	resourcedefaults "k8s.io/kubernetes/pkg/apis/resource/v1"
	schedulerapi "k8s.io/kubernetes/pkg/scheduler/apis/config"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/schedulinggates"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"

	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
)

const maxLine = 64 << 20

type cluster struct {
	Objects []json.RawMessage `json:"objects"`
	Pods    []json.RawMessage `json:"pods"`
}

// verdict is the verdict for one node: feasible, resolvable by preemption, unresolvable, or error, with which
// kube-scheduler ends the scheduling cycle of the pod; and the reasons by plugin.
type verdict struct {
	State   string              `json:"state"`
	Reasons map[string][]string `json:"reasons,omitempty"`
}

// answer contains the verdicts for one pod by node, the weighted scores of the feasible nodes by plugin and node, the
// victims by node, and the node that preemption selects.
type answer struct {
	Pod      string                      `json:"pod"`
	Nodes    map[string]verdict          `json:"nodes"`
	Scores   map[string]map[string]int64 `json:"scores,omitempty"`
	Victims  map[string][]string         `json:"victims,omitempty"`
	Selected string                      `json:"selected,omitempty"`
	Error    string                      `json:"error,omitempty"`
}

// noNominations is a nominator without nominated pods.
type noNominations struct{}

func (noNominations) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (noNominations) DeleteNominatedPodIfExists(*v1.Pod)                            {}
func (noNominations) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo)          {}
func (noNominations) NominatedPodsForNode(string) []fwk.PodInfo                     { return nil }

func main() {
	klog.SetOutput(os.Stderr)
	metrics.Register()
	// Since 1.37, the API server sets the requests of pods with pod-level limits after admission, outside the defaults.
	if err := utilfeature.DefaultMutableFeatureGate.Set("PodLevelResourcesFixDefaulting=false"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	reader := bufio.NewScanner(os.Stdin)
	reader.Buffer(make([]byte, 1<<20), maxLine)
	writer := json.NewEncoder(os.Stdout)
	for reader.Scan() {
		answers, err := judgeCluster(reader.Bytes())
		if err != nil {
			answers = []answer{{Error: err.Error()}}
		}
		if err := writer.Encode(answers); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// decode reads an object and sets the defaults of pods and resource claims, as the API server does.
func decode(raw []byte) (runtime.Object, error) {
	object, _, err := clientscheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	switch typed := object.(type) {
	case *v1.Pod:
		corev1defaults.SetObjectDefaults_Pod(typed)
	case *resourceapi.ResourceClaim:
		resourcedefaults.SetObjectDefaults_ResourceClaim(typed)
	}
	return object, err
}

// judge contains kube-scheduler's code for one cluster: the framework, the filter plugins and preemption.
type judge struct {
	scheduler  framework.Framework
	plugins    []fwk.Plugin
	gates      fwk.PreEnqueuePlugin
	preemption *defaultpreemption.DefaultPreemption
	budgets    []*policyv1.PodDisruptionBudget
}

// judgeCluster judges the pods of one line; a panic of kube-scheduler's code, for example without a field that the API
// server requires, is an error.
func judgeCluster(line []byte) (answers []answer, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	var given cluster
	if err := json.Unmarshal(line, &given); err != nil {
		return nil, err
	}
	objects := make([]runtime.Object, len(given.Objects))
	for place, raw := range given.Objects {
		object, err := decode(raw)
		if err != nil {
			return nil, err
		}
		objects[place] = object
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Background()))
	defer cancel()
	judge, err := newJudge(ctx, objects)
	if err != nil {
		return nil, err
	}
	answers = make([]answer, len(given.Pods))
	for place, raw := range given.Pods {
		object, err := decode(raw)
		if err != nil {
			return nil, err
		}
		if answers[place], err = judge.pod(ctx, object.(*v1.Pod)); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// newJudge builds the framework of the default profile on a snapshot of the cluster.
func newJudge(ctx context.Context, objects []runtime.Object) (*judge, error) {
	var nodes []*v1.Node
	var placed []*v1.Pod
	for _, object := range objects {
		switch typed := object.(type) {
		case *v1.Node:
			nodes = append(nodes, typed)
		case *v1.Pod:
			placed = append(placed, typed)
		}
	}
	var versioned configv1.KubeSchedulerConfiguration
	configscheme.Scheme.Default(&versioned)
	var config schedulerapi.KubeSchedulerConfiguration
	if err := configscheme.Scheme.Convert(&versioned, &config, nil); err != nil {
		return nil, err
	}
	profile := &config.Profiles[0]
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	claims := assumecache.NewAssumeCache(klog.FromContext(ctx), factory.Resource().V1().ResourceClaims().Informer(),
		"ResourceClaim", "", nil)
	slices, err := resourceslicetracker.StartTracker(ctx, resourceslicetracker.Options{
		EnableDeviceTaintRules: true, EnableConsumableCapacity: true, KubeClient: client,
		SliceInformer: factory.Resource().V1().ResourceSlices(),
		TaintInformer: factory.Resource().V1().DeviceTaintRules(),
	})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, slices.Stop)
	allocations := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{})
	// The framework creates the plugins; a second instance would add its indexers to the shared informers again.
	created := map[string]fwk.Plugin{}
	registry := plugins.NewInTreeRegistry()
	for name, create := range registry {
		registry[name] = func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			plugin, err := create(ctx, args, handle)
			created[name] = plugin
			return plugin, err
		}
	}
	manager := dynamicresources.NewDRAManager(ctx, claims, slices, factory)
	// The resolver of extended resources follows the device classes by an event handler, as in eventhandlers.go.
	resolver := manager.DeviceClassResolver().(*extendedresourcecache.ExtendedResourceCache)
	resolved, err := factory.Resource().V1().DeviceClasses().Informer().AddEventHandler(resolver)
	if err != nil {
		return nil, err
	}
	snapshot := internalcache.NewSnapshot(placed, nodes)
	scheduler, err := frameworkruntime.NewFramework(ctx, registry, profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSharedDRAManager(manager),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithSnapshotSharedLister(snapshot),
		frameworkruntime.WithMutableSnapshotLister(snapshot),
		frameworkruntime.WithPodNominator(noNominations{}),
		frameworkruntime.WithParallelism(1),
	)
	if err != nil {
		return nil, err
	}
	found := &judge{scheduler: scheduler}
	for _, enabled := range profile.Plugins.MultiPoint.Enabled {
		plugin := created[enabled.Name]
		if preemption, ok := plugin.(*defaultpreemption.DefaultPreemption); ok {
			found.preemption = preemption
		} else if gates, ok := plugin.(*schedulinggates.SchedulingGates); ok {
			found.gates = gates
		} else if _, ok := plugin.(fwk.PreFilterPlugin); ok {
			found.plugins = append(found.plugins, plugin)
		} else if _, ok := plugin.(fwk.FilterPlugin); ok {
			found.plugins = append(found.plugins, plugin)
		}
	}
	budgets := factory.Policy().V1().PodDisruptionBudgets().Lister()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	// Taint rules, allocated devices and device classes are handled after the caches are filled.
	<-slices.HasSyncedChecker().Done()
	<-allocations.HasSyncedChecker().Done()
	<-resolved.HasSyncedChecker().Done()
	found.budgets, err = budgets.List(labels.Everything())
	return found, err
}

func (judge *judge) pod(ctx context.Context, pod *v1.Pod) (answer, error) {
	found := answer{Pod: pod.Namespace + "/" + pod.Name, Nodes: map[string]verdict{}}
	nodes, err := judge.scheduler.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return found, err
	}
	for _, node := range nodes {
		found.Nodes[node.Node().Name] = verdict{State: "feasible", Reasons: map[string][]string{}}
	}
	if gated := judge.gates.PreEnqueue(ctx, pod); !gated.IsSuccess() {
		for name := range found.Nodes {
			found.Nodes[name] = verdict{State: "unresolvable",
				Reasons: map[string][]string{judge.gates.Name(): gated.Reasons()}}
		}
		return found, nil
	}
	state := framework.NewCycleState()
	for _, plugin := range judge.plugins {
		if err := judge.filter(ctx, plugin, state, pod, nodes, found.Nodes); err != nil {
			return found, err
		}
	}
	var feasible []fwk.NodeInfo
	statuses := framework.NewDefaultNodeToStatus()
	for _, node := range nodes {
		switch name := node.Node().Name; found.Nodes[name].State {
		case "feasible":
			feasible = append(feasible, node)
		case "resolvable":
			statuses.Set(name, fwk.NewStatus(fwk.Unschedulable))
		}
	}
	if len(feasible) > 0 {
		return found, judge.score(ctx, pod, feasible, &found)
	}
	return found, judge.preempt(ctx, pod, statuses, &found)
}

// score adds the scores of the feasible nodes.
func (judge *judge) score(ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo, found *answer) error {
	state := framework.NewCycleState()
	if _, status, _ := judge.scheduler.RunPreFilterPlugins(ctx, state, pod); !status.IsSuccess() {
		return status.AsError()
	}
	if status := judge.scheduler.RunPreScorePlugins(ctx, state, pod, nodes); !status.IsSuccess() {
		return status.AsError()
	}
	scored, status := judge.scheduler.RunScorePlugins(ctx, state, pod, nodes)
	if !status.IsSuccess() {
		return status.AsError()
	}
	found.Scores = map[string]map[string]int64{}
	for _, node := range scored {
		for _, plugin := range node.Scores {
			if found.Scores[plugin.Name] == nil {
				found.Scores[plugin.Name] = map[string]int64{}
			}
			found.Scores[plugin.Name][node.Name] = plugin.Score
		}
	}
	return nil
}

// filter runs the PreFilter and Filter methods of one plugin, and adds its rejections to the verdicts.
func (judge *judge) filter(ctx context.Context, plugin fwk.Plugin, state fwk.CycleState, pod *v1.Pod,
	nodes []fwk.NodeInfo, verdicts map[string]verdict) error {
	var only *fwk.PreFilterResult
	var status *fwk.Status
	if first, ok := plugin.(fwk.PreFilterPlugin); ok {
		only, status = first.PreFilter(ctx, state, pod, nodes)
		if status.IsSkip() {
			return nil
		}
	}
	second, filters := plugin.(fwk.FilterPlugin)
	for _, node := range nodes {
		name := node.Node().Name
		of := status
		if status.IsSuccess() && !only.AllNodes() && !only.NodeNames.Has(name) {
			of = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "the PreFilter result excludes the node")
		} else if status.IsSuccess() && filters {
			of = second.Filter(ctx, state, pod, node)
		}
		if of.IsSuccess() {
			continue
		}
		found := verdicts[name]
		found.Reasons[plugin.Name()] = of.Reasons()
		switch {
		case of.Code() == fwk.UnschedulableAndUnresolvable:
			found.State = "unresolvable"
		case of.Code() == fwk.Unschedulable && found.State == "feasible":
			found.State = "resolvable"
		case of.Code() != fwk.Unschedulable:
			found.State = "error"
		}
		verdicts[name] = found
	}
	return nil
}

// preempt adds the victims on every node where preemption makes the pod fit, and the node that preemption selects.
func (judge *judge) preempt(ctx context.Context, pod *v1.Pod, statuses *framework.NodeToStatus, found *answer) error {
	if ok, _ := judge.preemption.PodEligibleToPreemptOthers(ctx, pod, nil); !ok {
		return nil
	}
	state := framework.NewCycleState()
	if _, status, _ := judge.scheduler.RunPreFilterPlugins(ctx, state, pod); !status.IsSuccess() {
		return nil
	}
	nodes := judge.scheduler.SnapshotSharedLister().NodeInfos()
	potential, err := statuses.NodesForStatusCode(nodes, fwk.Unschedulable)
	if err != nil || len(potential) == 0 {
		return err
	}
	candidates, _, err := judge.preemption.Evaluator.DryRunPreemption(ctx, state, pod, potential, judge.budgets, 0,
		int32(len(potential)))
	if err != nil || len(candidates) == 0 {
		return err
	}
	found.Victims = map[string][]string{}
	for _, candidate := range candidates {
		var names []string
		for _, victim := range candidate.Victims().Pods {
			names = append(names, victim.Namespace+"/"+victim.Name)
		}
		found.Victims[candidate.Name()] = names
	}
	found.Selected = judge.preemption.Evaluator.SelectCandidate(ctx, candidates).Name()
	return nil
}
